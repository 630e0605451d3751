/* tests/cuda/ptx/instructions.cpp - what each instruction does, from the PTX ISA 9.0. */
#include "tests/cuda/ptx/ptx.h"

#include <cfenv>
#include <cmath>
#include <tuple>
#include <type_traits>
#include <utility>

namespace ptx
{

typedef uint16_t                           u16;
typedef uint32_t                           u32;
typedef uint64_t                           u64;
typedef int16_t                            s16;
typedef int32_t                            s32;
typedef int64_t                            s64;
typedef std::map<std::string, instruction> table;

/* ---- a function of each lane */

template <typename T> static const char *letter(void)
{
    return sizeof(T) == 2 ? "h" : sizeof(T) == 4 ? "w" : "d";
}

template <typename D, typename... S, typename F, size_t... I>
static void apply(warp &w, const step &s, const F &f, std::index_sequence<I...>)
{
    D                       *to = w.at<D>(s.slot[0]);
    std::tuple<const S *...> from(w.at<S>(s.slot[1 + I])...);

    if (w.exec == ~0u) {
        for (int l = 0; l < WARP; l++)
            to[l] = f(std::get<I>(from)[l]...);
        return;
    }
    for (int l = 0; l < WARP; l++)
        if (w.exec >> l & 1) to[l] = f(std::get<I>(from)[l]...);
}

/* to = f(from...).  Doubles are never flushed on a GPU, whatever the thread does here. */
template <typename D, typename... S, typename F> static instruction each(F f)
{
    constexpr bool doubles =
        (std::is_same<S, double>::value || ...) || std::is_same<D, double>::value;

    return {letter<D>() + (... + std::string(letter<S>())), [f](warp &w, const step &s) {
                fenv_t env;

                if (doubles) {
                    fegetenv(&env);
                    fesetenv(FE_DFL_ENV);
                }
                apply<D, S...>(w, s, f, std::index_sequence_for<S...>());
                if (doubles) fesetenv(&env);
            }};
}

/* Subnormals are zeros of their sign; what a GPU computes as NaN is one pattern. */
static float flush(float v)
{
    u32 b = __float_as_uint(v);

    return __uint_as_float((b & 0x7f800000u) == 0 ? b & 0x80000000u : b);
}
static float made(float v) { return v != v ? __uint_as_float(0x7fffffffu) : flush(v); }

template <typename F> static instruction unary(F f)
{
    return each<float, float>([f](float a) { return made(f(flush(a))); });
}
template <typename F> static instruction binary(F f)
{
    return each<float, float, float>([f](float a, float b) { return made(f(flush(a), flush(b))); });
}

/* A mask of those lanes where f holds, among those that take part. */
static void set_lanes(warp &w, u32 slot, u32 lanes)
{
    u32 &p = *w.at<u32>(slot);

    p = (p & ~w.exec) | (lanes & w.exec);
}

template <typename T, typename F> static instruction compare(F f)
{
    return {std::string("p") + letter<T>() + letter<T>(), [f](warp &w, const step &s) {
                const T *a = w.at<T>(s.slot[1]), *b = w.at<T>(s.slot[2]);
                u32      lanes = 0;

                for (int l = 0; l < WARP; l++)
                    lanes |= (u32)f(a[l], b[l]) << l;
                set_lanes(w, s.slot[0], lanes);
            }};
}

template <typename F> static instruction logic(int n_from, F f)
{
    return {std::string((size_t)n_from + 1, 'p'), [f, n_from](warp &w, const step &s) {
                set_lanes(w, s.slot[0],
                          f(*w.at<u32>(s.slot[1]), n_from == 2 ? *w.at<u32>(s.slot[2]) : 0));
            }};
}

template <typename T> static instruction select(void)
{
    std::string k = letter<T>();

    return {k + k + k + "p", [](warp &w, const step &s) {
                T       *to = w.at<T>(s.slot[0]);
                const T *a = w.at<T>(s.slot[1]), *b = w.at<T>(s.slot[2]);
                u32      p = *w.at<u32>(s.slot[3]);

                for (int l = 0; l < WARP; l++)
                    if (w.exec >> l & 1) to[l] = p >> l & 1 ? a[l] : b[l];
            }};
}

/* The lower half and the upper one. */
template <typename T, typename Half> static instruction take_apart(void)
{
    std::string k = letter<Half>();

    return {k + k + letter<T>(), [](warp &w, const step &s) {
                Half    *low = w.at<Half>(s.slot[0]), *high = w.at<Half>(s.slot[1]);
                const T *v = w.at<T>(s.slot[2]);

                for (int l = 0; l < WARP; l++)
                    if (w.exec >> l & 1) {
                        low[l]  = Half(v[l]);
                        high[l] = Half(v[l] >> 8 * sizeof(Half));
                    }
            }};
}

/* ---- integers */

template <typename T> static void add_integers(table *t, const std::string &type)
{
    typedef typename std::make_unsigned<T>::type U;

    (*t)["add" + type]    = each<U, U, U>([](U a, U b) { return U(a + b); });
    (*t)["sub" + type]    = each<U, U, U>([](U a, U b) { return U(a - b); });
    (*t)["mul.lo" + type] = each<U, U, U>([](U a, U b) { return U(u64(a) * b); });
    (*t)["mad.lo" + type] = each<U, U, U, U>([](U a, U b, U c) { return U(u64(a) * b + c); });
    (*t)["neg" + type]    = each<U, U>([](U a) { return U(-a); });
    (*t)["min" + type]    = each<T, T, T>([](T a, T b) { return a < b ? a : b; });
    (*t)["max" + type]    = each<T, T, T>([](T a, T b) { return a > b ? a : b; });
    (*t)["div" + type]    = each<T, T, T>([](T a, T b) {
        if (b == 0) fail("an integer divided by 0");
        return T(a / b);
    });
    (*t)["rem" + type]    = each<T, T, T>([](T a, T b) {
        if (b == 0) fail("an integer divided by 0");
        return T(a % b);
    });
    /* By as much as there are bits or more: what is left is the sign. */
    (*t)["shr" + type] = each<T, T, u32>([](T a, u32 n) {
        return n < 8 * sizeof(T) ? T(a >> n) : T(std::is_signed<T>::value && a < T(0) ? -1 : 0);
    });
}

template <typename T> static void add_bits(table *t, const std::string &type)
{
    (*t)["and" + type] = each<T, T, T>([](T a, T b) { return T(a & b); });
    (*t)["or" + type]  = each<T, T, T>([](T a, T b) { return T(a | b); });
    (*t)["xor" + type] = each<T, T, T>([](T a, T b) { return T(a ^ b); });
    (*t)["not" + type] = each<T, T>([](T a) { return T(~a); });
    (*t)["shl" + type] =
        each<T, T, u32>([](T a, u32 n) { return n < 8 * sizeof(T) ? T(a << n) : T(0); });
    (*t)["shr" + type] =
        each<T, T, u32>([](T a, u32 n) { return n < 8 * sizeof(T) ? T(a >> n) : T(0); });
    (*t)["popc" + type] = each<u32, T>([](T a) { return u32(__builtin_popcountll(a)); });
}

/* cvt.TO.FROM between integers: what does not fit is cut off. */
template <typename To, typename From>
static void add_widths(table *t, const std::string &to, const std::string &from)
{
    (*t)["cvt." + to + "." + from] = each<To, From>([](From v) { return To(v); });
}

template <typename T> static void add_compares(table *t, const std::string &type)
{
    (*t)["setp.eq" + type] = compare<T>([](T a, T b) { return a == b; });
    (*t)["setp.ne" + type] = compare<T>([](T a, T b) { return a != b; });
    (*t)["setp.lt" + type] = compare<T>([](T a, T b) { return a < b; });
    (*t)["setp.le" + type] = compare<T>([](T a, T b) { return a <= b; });
    (*t)["setp.gt" + type] = compare<T>([](T a, T b) { return a > b; });
    (*t)["setp.ge" + type] = compare<T>([](T a, T b) { return a >= b; });
}

/* ---- floats */

/* `in` flushes what is compared, or does not. */
template <typename T, typename In>
static void add_float_compares(table *t, const std::string &type, In in)
{
#define BOTH(name, relation)                                                                \
    (*t)["setp." name + type] = compare<T>([in](T a, T b) { return in(a)relation in(b); }); \
    (*t)["setp." name "u" + type] =                                                         \
        compare<T>([in](T a, T b) { return a != a || b != b || in(a)relation in(b); })
    BOTH("eq", ==);
    BOTH("lt", <);
    BOTH("le", <=);
    BOTH("gt", >);
    BOTH("ge", >=);
    (*t)["setp.ne" + type] =
        compare<T>([in](T a, T b) { return a == a && b == b && in(a) != in(b); });
    (*t)["setp.neu" + type] = compare<T>([in](T a, T b) { return !(in(a) == in(b)); });
    (*t)["setp.num" + type] = compare<T>([](T a, T b) { return a == a && b == b; });
    (*t)["setp.nan" + type] = compare<T>([](T a, T b) { return a != a || b != b; });
}

/* Of one that is NaN the other; -0 is below +0. */
static float larger(float a, float b)
{
    if (a != a) return b;
    if (b != b) return a;
    return a > b || (a == b && std::signbit(b)) ? a : b;
}
static float smaller(float a, float b) { return -larger(-a, -b); }

static void add_floats(table *t)
{
    (*t)["add.rn.ftz.f32"]  = binary([](float a, float b) { return a + b; });
    (*t)["sub.rn.ftz.f32"]  = binary([](float a, float b) { return a - b; });
    (*t)["mul.rn.ftz.f32"]  = binary([](float a, float b) { return a * b; });
    (*t)["div.rn.ftz.f32"]  = binary([](float a, float b) { return a / b; });
    (*t)["max.ftz.f32"]     = binary(larger);
    (*t)["min.ftz.f32"]     = binary(smaller);
    (*t)["neg.ftz.f32"]     = each<float, float>([](float a) { return flush(-a); });
    (*t)["abs.ftz.f32"]     = each<float, float>([](float a) { return flush(std::fabs(a)); });
    (*t)["rcp.rn.ftz.f32"]  = unary([](float a) { return 1 / a; });
    (*t)["sqrt.rn.ftz.f32"] = unary([](float a) { return std::sqrt(a); });
    (*t)["fma.rn.ftz.f32"]  = each<float, float, float, float>(
        [](float a, float b, float c) { return made(std::fma(flush(a), flush(b), flush(c))); });
    (*t)["add.rn.f64"] = each<double, double, double>([](double a, double b) { return a + b; });
    (*t)["sub.rn.f64"] = each<double, double, double>([](double a, double b) { return a - b; });
    (*t)["mul.rn.f64"] = each<double, double, double>([](double a, double b) { return a * b; });
    (*t)["div.rn.f64"] = each<double, double, double>([](double a, double b) { return a / b; });
    (*t)["rcp.rn.f64"] = each<double, double>([](double a) { return 1 / a; });
    (*t)["neg.f64"]    = each<double, double>([](double a) { return -a; });
    add_float_compares<float>(t, ".ftz.f32", flush);
    add_float_compares<double>(t, ".f64", [](double v) { return v; });
}

/* ---- conversions */

static u16 half_of_e4m3(u32 v)
{
    u32 sign = (v & 0x80) << 8, size = v & 0x7f;

    if (size == 0x7f) return 0x7fff;
    if (size >= 8) return u16(sign | ((size << 7) + (8 << 10)));
    for (u32 e = 8; size != 0; e--, size <<= 1) /* subnormal: half's exponent reaches further */
        if (size & 8) return u16(sign | (e + 1) << 10 | (size & 7) << 7);
    return u16(sign);
}

static float float_of_half(u16 v)
{
    u32   e = v >> 10 & 31, m = v & 1023;
    float f = e == 31  ? m != 0 ? NAN : INFINITY
              : e == 0 ? std::ldexp((float)m, -24)
                       : std::ldexp((float)(m | 1024), (int)e - 25);

    return f != f ? __uint_as_float(0x7fffffffu) : v >> 15 ? -f : f;
}

/* The low n bits of a, in b from one of its bits on. */
template <typename T> static T insert_bits(T a, T b, u32 from, u32 n)
{
    const u32 all   = 8 * sizeof(T);
    T         field = (n & 0xff) >= all ? ~T(0) : (T(1) << (n & 0xff)) - 1;

    from &= 0xff;
    return from >= all ? b : (b & ~(field << from)) | (a & field) << from;
}

static void add_conversions(table *t)
{
    add_widths<u64, u32>(t, "u64", "u32");
    add_widths<s64, s32>(t, "s64", "s32");
    add_widths<u32, u64>(t, "u32", "u64");
    add_widths<u16, u64>(t, "u16", "u64");
    add_widths<u16, u32>(t, "u16", "u32");
    add_widths<u32, u16>(t, "u32", "u16");
    add_widths<s32, s16>(t, "s32", "s16");
    add_widths<u64, u16>(t, "u64", "u16");
    (*t)["cvt.rn.f32.u32"]     = each<float, u32>([](u32 v) { return float(v); });
    (*t)["cvt.rn.f32.u16"]     = each<float, u16>([](u16 v) { return float(v); });
    (*t)["cvt.rn.f32.s32"]     = each<float, s32>([](s32 v) { return float(v); });
    (*t)["cvt.rn.f64.s64"]     = each<double, s64>([](s64 v) { return double(v); });
    (*t)["cvt.ftz.f64.f32"]    = each<double, float>([](float v) { return double(flush(v)); });
    (*t)["cvt.rn.ftz.f32.f64"] = each<float, double>([](double v) { return made(float(v)); });
    (*t)["cvt.rn.bf16.f32"]    = each<u16, float>(bf16_of);
    (*t)["cvt.rn.bf16x2.f32"] =
        each<u32, float, float>([](float high, float low) { return bf16x2_of(low, high); });
    (*t)["cvt.rn.f16x2.e4m3x2"] = each<u32, u16>(
        [](u16 v) { return u32(half_of_e4m3(v >> 8)) << 16 | half_of_e4m3(v & 0xff); });
    (*t)["cvt.f32.f16"] = each<float, u16>(float_of_half);
    (*t)["bfi.b32"]     = each<u32, u32, u32, u32, u32>(insert_bits<u32>);
    (*t)["bfi.b64"]     = each<u64, u64, u64, u32, u32>(insert_bits<u64>);
}

static void add_moves(table *t)
{
    for (const char *type : {"b16", "u16", "s16"})
        (*t)[std::string("mov.") + type] = each<u16, u16>([](u16 v) { return v; });
    for (const char *type : {"b32", "u32", "s32", "f32"})
        (*t)[std::string("mov.") + type] = each<u32, u32>([](u32 v) { return v; });
    for (const char *type : {"b64", "u64", "s64", "f64"})
        (*t)[std::string("mov.") + type] = each<u64, u64>([](u64 v) { return v; });
    /* As instruction_named() calls those that take apart and put together. */
    (*t)["mov.b64 take apart"] = take_apart<u64, u32>();
    (*t)["mov.b32 take apart"] = take_apart<u32, u16>();
    (*t)["mov.b64 put together"] =
        each<u64, u32, u32>([](u32 low, u32 high) { return u64(high) << 32 | low; });
    (*t)["mov.b32 put together"] =
        each<u32, u16, u16>([](u16 low, u16 high) { return u32(high) << 16 | low; });
    (*t)["selp.b16"] = (*t)["selp.u16"] = (*t)["selp.s16"] = select<u16>();
    (*t)["selp.b32"] = (*t)["selp.u32"] = (*t)["selp.s32"] = (*t)["selp.f32"] = select<u32>();
    (*t)["selp.b64"] = (*t)["selp.u64"] = (*t)["selp.s64"] = (*t)["selp.f64"] = select<u64>();
    (*t)["mov.pred"] = logic(1, [](u32 a, u32) { return a; });
    (*t)["not.pred"] = logic(1, [](u32 a, u32) { return ~a; });
    (*t)["and.pred"] = logic(2, [](u32 a, u32 b) { return a & b; });
    (*t)["or.pred"]  = logic(2, [](u32 a, u32 b) { return a | b; });
    (*t)["xor.pred"] = logic(2, [](u32 a, u32 b) { return a ^ b; });
}

/* ---- memory */

static u64 lane_value(warp &w, u32 slot, u32 bytes, int l)
{
    return bytes == 2 ? w.at<u16>(slot)[l] : bytes == 4 ? w.at<u32>(slot)[l] : w.at<u64>(slot)[l];
}
static void set_lane(warp &w, u32 slot, u32 bytes, int l, u64 v)
{
    if (bytes == 2) w.at<u16>(slot)[l] = u16(v);
    if (bytes == 4) w.at<u32>(slot)[l] = u32(v);
    if (bytes == 8) w.at<u64>(slot)[l] = v;
}

enum space { GENERIC, GLOBAL, SHARED, PARAM };

template <typename T>
static char *at(warp &w, const step &s, int l, u32 slot, space in, u32 n, access how)
{
    u32 bytes = n * u32(sizeof(T));

    if (in == SHARED)
        return shared_at(w, unsigned(l), u32(w.at<u32>(slot)[l] + u64(s.number[0])), bytes, how);
    u64 address = w.at<u64>(slot)[l] + u64(s.number[0]);

    if (in == PARAM) return param_at(address, bytes);
    if (in == GLOBAL && is_shared(address)) fail("lane %d: shared memory as global", l);
    return memory_at(w, unsigned(l), address, bytes, how);
}

/* n elements T: sign or zeros fill a wider register, a narrower part of one is stored. */
template <typename T> static void add_accesses(table *t, const std::string &type)
{
    static const char *const SPACES[] = {"", ".global", ".shared", ".param"};

    for (int i = GENERIC; i <= PARAM; i++)
        for (u32 n : {1u, 2u, 4u}) {
            std::string name = SPACES[i] + (n == 1 ? "" : ".v" + std::to_string(n)) + "." + type;
            std::string data(n, 'x'), address = i == SHARED ? "s" : "a";
            space       in    = space(i);
            instruction load  = {data + address, [in, n](warp &w, const step &s) {
                                    for (int l = 0; l < WARP; l++) {
                                        if (!(w.exec >> l & 1)) continue;
                                        T v[4];

                                        memcpy(v, at<T>(w, s, l, s.slot[n], in, n, READS),
                                                n * sizeof(T));
                                        for (u32 e = 0; e < n; e++)
                                            set_lane(w, s.slot[e], s.bytes, l, u64(s64(v[e])));
                                    }
                                }};
            instruction store = {address + data, [in, n](warp &w, const step &s) {
                                     for (int l = 0; l < WARP; l++) {
                                         if (!(w.exec >> l & 1)) continue;
                                         T v[4];

                                         for (u32 e = 0; e < n; e++)
                                             v[e] = T(lane_value(w, s.slot[1 + e], s.bytes, l));
                                         memcpy(at<T>(w, s, l, s.slot[0], in, n, WRITES), v,
                                                n * sizeof(T));
                                     }
                                 }};

            load.bytes = store.bytes = sizeof(T);
            (*t)["ld" + name]        = load;
            if (in != PARAM) (*t)["st" + name] = store;
        }
}

template <typename T, typename F> static instruction atomic(space in, F f)
{
    instruction i = {std::string("x") + (in == SHARED ? "s" : "a") + "x",
                     [in, f](warp &w, const step &s) {
                         for (int l = 0; l < WARP; l++) {
                             if (!(w.exec >> l & 1)) continue;
                             char *p = at<T>(w, s, l, s.slot[1], in, 1, ADDS);
                             T     was, is;

                             memcpy(&was, p, sizeof(T));
                             is = f(was, T(lane_value(w, s.slot[2], s.bytes, l)));
                             memcpy(p, &is, sizeof(T));
                             set_lane(w, s.slot[0], s.bytes, l, was);
                         }
                     }};

    i.bytes = sizeof(T);
    return i;
}

template <typename T> static void add_atomics(table *t, const std::string &type)
{
    for (const char *atom :
         {"atom", "atom.relaxed.gpu"}) /* the same, as older and newer nvcc say */
        for (space in : {SHARED, GLOBAL}) {
            std::string name = std::string(atom) + (in == SHARED ? ".shared" : ".global");

            (*t)[name + ".add" + type] = atomic<T>(in, [](T a, T b) { return T(a + b); });
            (*t)[name + ".min" + type] = atomic<T>(in, [](T a, T b) { return a < b ? a : b; });
        }
}

/* ---- meetings */

/* shfl.sync: lane j of a segment that `c` bounds, else the lane's own. */
static instruction
shuffle(unsigned (*from)(unsigned lane, unsigned b, unsigned base, unsigned segment), bool up)
{
    instruction i = {"wpwwww",
                     [from, up](warp &w, const step &s) {
                         u32       *to = w.at<u32>(s.slot[0]), was[WARP], inside = 0;
                         const u32 *b = w.at<u32>(s.slot[3]), *c = w.at<u32>(s.slot[4]);

                         memcpy(was, w.at<u32>(s.slot[2]), sizeof(was));
                         for (unsigned l = 0; l < WARP; l++) {
                             if (!(w.exec >> l & 1)) continue;
                             unsigned segment = c[l] >> 8 & 31,
                                      last    = (l & segment) | (c[l] & 31 & ~segment);
                             unsigned j       = from(l, b[l] & 31, l & segment, segment);
                             bool     in      = up ? (int)j >= (int)last : j <= last;

                             if (!in) j = l;
                             if (!(w.exec >> j & 1))
                                 fail("lane %u reads lane %u, which takes no part", l, j);
                             to[l] = was[j];
                             inside |= u32(in) << l;
                         }
                         set_lanes(w, s.slot[1], inside);
                     },
                     MEETS_WARP, 5};

    return i;
}

static void multiply(warp &w, const step &s)
{
    float         d[WARP][4];
    u32           a[WARP][4], b[WARP][2];
    simt::mma_arg lane[WARP];
    void         *arg[WARP];

    for (int l = 0; l < WARP; l++) {
        for (int q = 0; q < 4; q++) {
            a[l][q] = w.at<u32>(s.slot[4 + q])[l];
            d[l][q] = w.at<float>(s.slot[10 + q])[l];
        }
        for (int q = 0; q < 2; q++)
            b[l][q] = w.at<u32>(s.slot[8 + q])[l];
        lane[l] = {d[l], a[l], b[l]};
        arg[l]  = &lane[l];
    }
    simt::multiply(arg);
    for (int l = 0; l < WARP; l++)
        for (int q = 0; q < 4; q++)
            w.at<float>(s.slot[q])[l] = d[l][q];
}

static void load_matrices(warp &w, const step &s, bool turned)
{
    u32              r[WARP][4];
    simt::matrix_arg lane[WARP];
    void            *arg[WARP];

    for (unsigned l = 0; l < WARP; l++) {
        u32 address = u32(w.at<u32>(s.slot[4])[l] + u64(s.number[0]));

        lane[l] = {r[l], shared_at(w, l, address, 16, READS), turned};
        arg[l]  = &lane[l];
    }
    simt::load_matrices(arg);
    for (int l = 0; l < WARP; l++)
        for (int q = 0; q < 4; q++)
            w.at<u32>(s.slot[q])[l] = r[l][q];
}

static void add_meetings(table *t)
{
    (*t)["shfl.sync.bfly.b32"] =
        shuffle([](unsigned l, unsigned b, unsigned, unsigned) { return l ^ b; }, false);
    (*t)["shfl.sync.up.b32"] =
        shuffle([](unsigned l, unsigned b, unsigned, unsigned) { return l - b; }, true);
    (*t)["shfl.sync.idx.b32"] = shuffle(
        [](unsigned, unsigned b, unsigned base, unsigned segment) { return base | (b & ~segment); },
        false);
    (*t)["vote.sync.ballot.b32"] = {"wpw",
                                    [](warp &w, const step &s) {
                                        u32 votes = *w.at<u32>(s.slot[1]) & w.exec;

                                        for (int l = 0; l < WARP; l++)
                                            if (w.exec >> l & 1) w.at<u32>(s.slot[0])[l] = votes;
                                    },
                                    MEETS_WARP, 2};
    (*t)["bar.warp.sync"]        = {"w", [](warp &w, const step &) { w.epoch += w.exec == ~0u; },
                                    MEETS_WARP, 0};
    (*t)["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = {"wwwwwwwwwwwwww", multiply,
                                                                   MEETS_WARP};
    (*t)["ldmatrix.sync.aligned.m8n8.x4.shared.b16"]            = {
                   "wwwws", [](warp &w, const step &s) { load_matrices(w, s, false); }, MEETS_WARP};
    (*t)["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"] = {
        "wwwws", [](warp &w, const step &s) { load_matrices(w, s, true); }, MEETS_WARP};
    (*t)["bar.sync"]        = {"n", nullptr, MEETS_BLOCK};
    (*t)["bar.red.or.pred"] = {"pnp", nullptr, MEETS_BLOCK};
    (*t)["bra"] = (*t)["bra.uni"] = {"l", nullptr, BRANCHES};
    (*t)["ret"]                   = {"", nullptr, ENDS};
}

static void add_copies(table *t)
{
    (*t)["cp.async.cg.shared.global"] = {
        "sanw", [](warp &w, const step &s) {
            if (s.number[2] != 16) fail("a copy of %lld bytes", (long long)s.number[2]);
            for (unsigned l = 0; l < WARP; l++)
                if (w.exec >> l & 1)
                    copy_async(w, l, u32(w.at<u32>(s.slot[0])[l] + u64(s.number[0])),
                               w.at<u64>(s.slot[1])[l] + u64(s.number[1]), w.at<u32>(s.slot[2])[l]);
        }};
    (*t)["cp.async.commit_group"] = {"", [](warp &w, const step &) { copy_commit(w); }};
    (*t)["cp.async.wait_group"]   = {
          "n", [](warp &w, const step &s) { copy_wait(w, unsigned(s.number[0])); }};
    (*t)["cvta.to.global.u64"] = each<u64, u64>([](u64 v) {
        if (is_shared(v)) fail("shared memory as global");
        return v;
    });
    (*t)["cvta.shared.u64"]    = each<u64, u64>(generic_of_shared);
}

static table all(void)
{
    table t;

    add_integers<s16>(&t, ".s16"), add_integers<u16>(&t, ".u16");
    add_integers<s32>(&t, ".s32"), add_integers<u32>(&t, ".u32");
    add_integers<s64>(&t, ".s64"), add_integers<u64>(&t, ".u64");
    add_bits<u16>(&t, ".b16"), add_bits<u32>(&t, ".b32"), add_bits<u64>(&t, ".b64");
    add_compares<s16>(&t, ".s16"), add_compares<u16>(&t, ".u16");
    add_compares<s32>(&t, ".s32"), add_compares<u32>(&t, ".u32");
    add_compares<s64>(&t, ".s64"), add_compares<u64>(&t, ".u64");
    for (std::string relation : {"setp.eq", "setp.ne"})
        for (std::string width : {"16", "32", "64"})
            t[relation + ".b" + width] = t[relation + ".u" + width];
    t["mul.hi.u32"]   = each<u32, u32, u32>([](u32 a, u32 b) { return u32(u64(a) * b >> 32); });
    t["mul.wide.u16"] = each<u32, u16, u16>([](u16 a, u16 b) { return u32(a) * b; });
    t["mul.wide.u32"] = each<u64, u32, u32>([](u32 a, u32 b) { return u64(a) * b; });
    t["mul.wide.s32"] = each<s64, s32, s32>([](s32 a, s32 b) { return s64(a) * b; });
    add_accesses<uint8_t>(&t, "u8"), add_accesses<int8_t>(&t, "s8");
    add_accesses<u16>(&t, "u16"), add_accesses<s16>(&t, "s16");
    add_accesses<uint8_t>(&t, "b8"), add_accesses<u16>(&t, "b16");
    add_accesses<u32>(&t, "b32"), add_accesses<u64>(&t, "b64");
    add_accesses<u32>(&t, "u32"), add_accesses<s32>(&t, "s32"), add_accesses<u32>(&t, "f32");
    add_accesses<u64>(&t, "u64"), add_accesses<u64>(&t, "f64");
    add_atomics<u32>(&t, ".u32"), add_atomics<u64>(&t, ".u64");
    add_floats(&t);
    add_conversions(&t);
    add_moves(&t);
    add_meetings(&t);
    add_copies(&t);
    return t;
}

const instruction *instruction_named(const std::string &name)
{
    static const table TABLE = all();
    auto               found = TABLE.find(name);

    return found == TABLE.end() ? nullptr : &found->second;
}

} // namespace ptx
