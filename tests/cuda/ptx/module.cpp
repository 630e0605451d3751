/* tests/cuda/ptx/module.cpp - reads PTX: registers and constants become slots of a warp's memory,
 * names of shared arrays and of parameters become numbers. */
#include "tests/cuda/ptx/ptx.h"

#include <cctype>
#include <fstream>
#include <sstream>

namespace ptx
{

struct token {
    std::string text;
    int         line;
};

struct named {
    char     kind; /* of instruction::operands */
    uint32_t slot;
};

struct reader {
    std::string                                   file;
    std::vector<token>                            tokens;
    size_t                                        at   = 0;
    uint32_t                                      used = NONE; /* by the load that comes next */
    kernel                                        k;
    std::vector<std::map<std::string, named>>     scopes;
    std::map<std::string, uint64_t>               symbols; /* of shared arrays, parameters */
    std::map<std::string, uint32_t>               labels;
    std::vector<std::pair<uint32_t, std::string>> jumps; /* steps, and where they go */
    std::map<std::string, uint32_t>               known; /* constants' slots */

    [[noreturn]] void refuse(const std::string &why) const
    {
        simt::die({file.c_str(), at < tokens.size() ? tokens[at].line : 0}, "%s", why.c_str());
    }
    const std::string &peek() const
    {
        if (at == tokens.size()) refuse("ends early");
        return tokens[at].text;
    }
    std::string next()
    {
        std::string text = peek();

        at++;
        return text;
    }
    bool take(const char *text)
    {
        if (peek() != text) return false;
        at++;
        return true;
    }
    void expect(const char *text)
    {
        if (!take(text)) refuse("expected " + std::string(text) + ", found " + peek());
    }
    uint64_t number() { return strtoull(next().c_str(), nullptr, 0); }

    void     split(const std::string &text);
    void     entry();
    void     body();
    void     declare_registers();
    void     declare_shared(bool unsized);
    void     instruction_at();
    void     operand(step *s, char kind, int *n_slots, int *n_numbers);
    named    find(const std::string &name) const;
    uint32_t slot(uint32_t bytes);
    uint32_t constant_slot(const std::string &text, uint32_t bytes);
};

static bool in_word(char c)
{
    return isalnum((unsigned char)c) != 0 || strchr("_$%.", c) != nullptr;
}

void reader::split(const std::string &text)
{
    int line = 1;

    for (size_t i = 0; i < text.size();) {
        size_t from = i;

        if (text[i] == '\n') line++;
        if (isspace((unsigned char)text[i])) {
            i++;
        } else if (text.compare(i, 2, "//") == 0) {
            i = std::min(text.find('\n', i), text.size());
        } else if (text[i] == '"') {
            i = text.find('"', i + 1) + 1;
            tokens.push_back({text.substr(from, i - from), line});
        } else if (in_word(text[i]) || text[i] == '-') {
            for (i++; i < text.size() && (in_word(text[i]) || text.compare(i, 2, "::") == 0);)
                i += text[i] == ':' ? 2 : 1;
            tokens.push_back({text.substr(from, i - from), line});
        } else {
            tokens.push_back({text.substr(i++, 1), line});
        }
    }
}

static uint32_t bytes_of_type(const std::string &type)
{
    return type == ".pred" ? 4 : (uint32_t)atoi(type.c_str() + 2) / 8;
}
static char     kind_of_bytes(uint32_t bytes) { return bytes == 2 ? 'h' : bytes == 4 ? 'w' : 'd'; }
static uint32_t bytes_of_kind(char kind)
{
    return kind == 'h' ? 2 : kind == 'd' || kind == 'a' ? 8 : 4;
}

uint32_t reader::slot(uint32_t bytes)
{
    uint32_t s = k.register_bytes;

    k.register_bytes += bytes * WARP; /* a predicate's too: all slots are aligned */
    return s;
}

/* .reg .b32 %r<33>, x; */
void reader::declare_registers()
{
    std::string type  = next();
    uint32_t    bytes = bytes_of_type(type);
    char        kind  = type == ".pred" ? 'p' : kind_of_bytes(bytes);

    if (bytes != 2 && bytes != 4 && bytes != 8) refuse("registers of type " + type);
    do {
        std::string name = next();

        if (take("<")) {
            for (uint64_t i = 0, n = number(); i < n; i++)
                scopes.back()[name + std::to_string(i)] = {kind, slot(bytes)};
            expect(">");
        } else {
            scopes.back()[name] = {kind, slot(bytes)};
        }
    } while (take(","));
    expect(";");
}

/* .shared .align 16 .b8 name[128]; the extern one lies behind all others. */
void reader::declare_shared(bool unsized)
{
    uint32_t    align = take(".align") ? (uint32_t)number() : 1;
    uint32_t    bytes = bytes_of_type(next());
    std::string name  = next();

    if (take("[")) {
        bytes = unsized ? 0 : bytes * (uint32_t)number();
        expect("]");
    }
    expect(";");
    if (unsized) {
        symbols[name] = NONE; /* known where the kernel has ended */
        return;
    }
    uint32_t from = (k.dynamic_at + align - 1) / align * align;

    symbols[name] = from;
    k.shared.push_back({from, bytes});
    k.dynamic_at = from + bytes;
}

named reader::find(const std::string &name) const
{
    for (size_t i = scopes.size(); i-- > 0;) {
        auto found = scopes[i].find(name);

        if (found != scopes[i].end()) return found->second;
    }
    return {0, 0};
}

/* A slot that holds a number, an address or a special register in all lanes. */
uint32_t reader::constant_slot(const std::string &text, uint32_t bytes)
{
    std::string key    = text + "/" + std::to_string(bytes);
    auto        symbol = symbols.find(text);

    if (known.count(key) != 0) return known[key];
    if (text == "_") return known[key] = slot(bytes); /* a result that nobody wants */
    constant c = {slot(bytes), bytes, 0, ""};

    if (symbol != symbols.end()) {
        c.value   = symbol->second;
        c.special = symbol->second == NONE ? "dynamic" : "";
    } else if (text[0] == '%') {
        c.special = text;
    } else if (text.compare(0, 2, "0f") == 0 || text.compare(0, 2, "0d") == 0) {
        c.value = strtoull(text.c_str() + 2, nullptr, 16);
    } else if (isdigit((unsigned char)text[0]) != 0) {
        c.value = strtoull(text.c_str(), nullptr, 0);
    } else if (text[0] == '-') {
        c.value = (uint64_t)strtoll(text.c_str(), nullptr, 0);
    } else {
        refuse("unknown name " + text);
    }
    k.constants.push_back(c);
    return known[key] = c.slot;
}

void reader::operand(step *s, char kind, int *n_slots, int *n_numbers)
{
    bool        address = kind == 's' || kind == 'a';
    std::string text;

    while (take(",") || take("{") || take("|") || take("}")) {
    }
    if (address) expect("[");
    text = next();
    if (kind == 'l') {
        jumps.push_back({(uint32_t)k.steps.size(), text});
    } else if (kind == 'n') {
        s->number[(*n_numbers)++] = strtoll(text.c_str(), nullptr, 0);
    } else {
        named    r     = find(text);
        uint32_t bytes = kind == 'x'
                             ? (r.kind == 0 ? std::max(s->what->bytes, 2u) : bytes_of_kind(r.kind))
                             : bytes_of_kind(kind);
        char     want  = kind == 'p' ? 'p' : kind_of_bytes(bytes);

        if (r.kind != 0 && r.kind != want)
            refuse(text + " is of another size than its instruction");
        if (kind == 'x') {
            if (s->bytes != 0 && s->bytes != bytes) refuse("registers of different sizes");
            s->bytes = bytes;
        }
        s->slot[(*n_slots)++] = r.kind != 0 ? r.slot : constant_slot(text, bytes);
    }
    if (address) {
        s->number[(*n_numbers)++] = take("+") ? strtoll(next().c_str(), nullptr, 0) : 0;
        expect("]");
    }
}

void reader::instruction_at()
{
    step s     = {};
    int  slots = 0, numbers = 0;

    s.line  = tokens[at].line;
    s.guard = NONE;
    s.used  = used;
    used    = NONE;
    if (take("@")) {
        s.unless = take("!");
        named g  = find(next());

        if (g.kind != 'p') refuse("a guard that is no predicate");
        s.guard = g.slot;
    }
    std::string name = next();

    if (name.compare(0, 5, "mov.b") == 0 && peek() == "{") name += " take apart";
    if (name.compare(0, 5, "mov.b") == 0 && tokens[at + 2].text == "{") name += " put together";
    s.what = instruction_named(name);
    if (s.what == nullptr) refuse("unknown instruction " + name + ": instructions.cpp has all");
    for (char kind : s.what->operands)
        operand(&s, kind, &slots, &numbers);
    while (take("}")) {
    }
    expect(";");
    k.steps.push_back(s);
}

void reader::body()
{
    expect("{");
    scopes.assign(1, {});
    while (!scopes.empty()) {
        if (take("{")) {
            scopes.push_back({});
        } else if (take("}")) {
            scopes.pop_back();
        } else if (take(".reg")) {
            declare_registers();
        } else if (take(".shared")) {
            declare_shared(false);
        } else if (take(".pragma")) {
            if (sscanf(next().c_str(), "\"used_bytes_mask %u", &used) != 1) used = NONE;
            expect(";");
        } else if (at + 1 < tokens.size() && tokens[at + 1].text == ":") {
            labels[next()] = (uint32_t)k.steps.size();
            expect(":");
        } else {
            instruction_at();
        }
    }
    for (const auto &jump : jumps) {
        if (labels.count(jump.second) == 0) refuse("no label " + jump.second);
        k.steps[jump.first].target = labels[jump.second];
    }
    for (const auto &label : labels)
        if (label.second < k.steps.size()) k.steps[label.second].joins = true;
}

/* name(.param .align 8 .b8 p[64], ...) .maxntid 512, 1, 1 ... { body } */
void reader::entry()
{
    uint32_t at_byte = 0;

    k             = {};
    k.name        = next();
    k.file        = file;
    k.max_threads = 1024;
    k.dynamic_at  = FIRST_SHARED;
    labels.clear();
    jumps.clear();
    known.clear();
    expect("(");
    while (!take(")")) {
        expect(".param");
        uint32_t align = take(".align") ? (uint32_t)number() : 0;
        uint32_t bytes = bytes_of_type(next());

        if (take(".ptr")) { /* what it points to is aligned so */
            expect(".align");
            next();
        }
        std::string name = next();

        if (align == 0) align = bytes;
        if (take("[")) {
            bytes *= (uint32_t)number();
            expect("]");
        }
        at_byte       = (at_byte + align - 1) / align * align;
        symbols[name] = at_byte;
        k.params.push_back({at_byte, bytes});
        at_byte += bytes;
        take(",");
    }
    while (peek() != "{") {
        if (take(".maxntid")) {
            k.max_threads = 1;
            do
                k.max_threads *= (uint32_t)number();
            while (take(","));
        } else if (take(".minnctapersm")) {
            next();
        } else {
            refuse("unknown directive " + peek());
        }
    }
    body();
}

void read_module(const std::string &path, std::map<std::string, kernel> *kernels)
{
    std::ifstream      in(path);
    std::ostringstream text;
    reader             r;

    text << in.rdbuf();
    if (!in || text.str().empty()) simt::die({path.c_str(), 0}, "cannot be read");
    r.file = path.substr(path.rfind('/') + 1);
    r.split(text.str());
    while (r.at < r.tokens.size()) {
        if (r.take(".version") || r.take(".target") || r.take(".address_size")) {
            r.next();
        } else if (r.take(".extern")) {
            r.expect(".shared");
            r.declare_shared(true);
        } else if (r.take(".visible") || r.take(".weak")) {
        } else if (r.take(".entry")) {
            r.entry();
            (*kernels)[r.k.name] = r.k;
        } else {
            r.refuse("unknown directive " + r.peek());
        }
    }
}

} // namespace ptx
