#include "cli/places.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/defaults.h"
#include "core/file.h"
#include "core/machine.h"
#include "core/parse.h"

/* ---- from hosts with slots */

typedef struct {
    char    *name; /* owned */
    uint32_t n_slots;
} host;

typedef struct {
    host    *at; /* owned [n], and the names */
    uint32_t n;
} host_list;

static void hosts_fini(host_list *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        bt_free(list->at[i].name);
    bt_free(list->at);
    *list = (host_list){0};
}

static bt_status add_host(host_list *list, const char *name, size_t n, uint32_t n_slots)
{
    bt_status st    = BT_OK;
    host     *grown = bt_realloc(list->at, list->n + 1, sizeof(*grown));
    char     *copy  = bt_calloc(n + 1, 1);

    if (grown != NULL) list->at = grown;
    BT_REQUIRE(grown != NULL && copy != NULL, BT_ERR_NO_MEMORY, "a list of %u hosts", list->n + 1);
    memcpy(copy, name, n);
    list->at[list->n++] = (host){copy, n_slots > 0 ? n_slots : 1};
    copy                = NULL;
out:
    bt_free(copy);
    return st;
}

static uint32_t slots(const char *text) { return (uint32_t)strtoul(text, NULL, 10); }

/* "n1:2,n2" */
static bt_status read_list(const char *text, host_list *list)
{
    bt_status st = BT_OK;

    while (*text != '\0') {
        size_t n = strcspn(text, ",:");

        if (n > 0) BT_TRY(add_host(list, text, n, text[n] == ':' ? slots(text + n + 1) : 1));
        text += strcspn(text, ",");
        text += *text == ',';
    }
out:
    return st;
}

/* Of the words behind a host's name, as mpirun reads them: blanks may stand around the '=', and
 * max_slots is another word. */
static uint32_t slots_of(const char *words)
{
    static const char WORD[] = "slots", BLANKS[] = " \t";

    for (const char *at = words; (at = strstr(at, WORD)) != NULL; at++) {
        const char *value = at + strlen(WORD);

        value += strspn(value, BLANKS);
        if (strchr(BLANKS, at[-1]) != NULL && *value == '=') return slots(value + 1);
    }
    return 1;
}

/* Lines like "n1 slots=8"; '#' begins a comment. */
static bt_status read_file(const char *path, host_list *list)
{
    bt_status   st       = BT_OK;
    char       *line     = NULL;
    size_t      capacity = 0;
    const char *why;
    FILE       *f = bt_open_regular(path, &why);

    BT_REQUIRE(f != NULL, BT_ERR_IO, "host file %s: %s", path, why);
    while (getline(&line, &capacity, f) >= 0) {
        const char *name;
        size_t      n;

        line[strcspn(line, "#\n")] = '\0';
        name                       = line + strspn(line, " \t");
        n                          = strcspn(name, " \t");
        if (n > 0) BT_TRY(add_host(list, name, n, slots_of(name + n)));
    }
    BT_REQUIRE(!ferror(f), BT_ERR_IO, "host file %s: %s", path, strerror(errno));
out:
    free(line);
    if (f != NULL) fclose(f);
    return st;
}

static bt_rank_kind kind_of(const bt_cell_options *opt, uint32_t rank)
{
    uint32_t n_first = opt->n_both + opt->n_prefill; /* --both goes without the others */

    if (rank < n_first) return BT_RANK_PREFILL;
    return rank < n_first + opt->n_decode ? BT_RANK_DECODE : BT_RANK_SPARE;
}

/* Fills slot after slot; with more ranks than slots it starts over. */
static bt_status fill_slots(const bt_cell_options *opt, const host_list *list, bt_rank_map *map)
{
    bt_status st      = BT_OK;
    uint32_t  n_ranks = bt_cell_n_ranks(opt);

    map->ranks = bt_calloc(n_ranks, sizeof(*map->ranks));
    BT_REQUIRE(map->ranks != NULL, BT_ERR_NO_MEMORY, "the places of %u ranks", n_ranks);
    for (uint32_t i = 0, used = 0; map->n_ranks < n_ranks; used++) {
        bt_rank_place *p = &map->ranks[map->n_ranks];

        if (used == list->at[i].n_slots) {
            i    = (i + 1) % list->n;
            used = 0;
        }
        *p = (bt_rank_place){.kind    = kind_of(opt, map->n_ranks++),
                             .host    = bt_strdup(list->at[i].name),
                             .cores   = bt_strdup(""),
                             .devices = bt_strdup("")};
        BT_REQUIRE(p->host != NULL && p->cores != NULL && p->devices != NULL, BT_ERR_NO_MEMORY,
                   "the places of %u ranks", n_ranks);
    }
    map->n_prefill = opt->n_prefill;
    map->n_decode  = opt->n_decode;
    map->n_both    = opt->n_both;
    map->n_spares  = opt->n_spares;
out:
    return st;
}

bt_status bt_places_read(const bt_cell_options *opt, bt_rank_map *map_out)
{
    bt_status   st   = BT_OK;
    host_list   list = {0};
    bt_rank_map map  = {0};

    if (opt->rank_map != NULL) return bt_rank_map_read(opt->rank_map, map_out);
    if (opt->hosts != NULL) BT_TRY(read_list(opt->hosts, &list));
    if (opt->hostfile != NULL) BT_TRY(read_file(opt->hostfile, &list));
    if (list.n > 0) BT_TRY(fill_slots(opt, &list, &map));
    *map_out = map;
    map      = (bt_rank_map){0}; /* handed over */
out:
    bt_rank_map_fini(&map);
    hosts_fini(&list);
    return st;
}

/* ---- and whether they reach the control port */

static BT_NORETURN void refuse_control(struct argp_state *state, const char *control,
                                       const char *who)
{
    argp_error(state,
               "--control is %s, which %s cannot reach: give an address of this machine that all "
               "hosts reach, like 10.0.0.1:0",
               control, who);
    abort(); /* it does not come back */
}

void bt_places_check_control(struct argp_state *state, const bt_cell_options *opt,
                             const char *given)
{
    const char *control = given != NULL ? given : BT_DEFAULT_CONTROL, *before = "";
    const char *nodes = getenv("SLURM_JOB_NUM_NODES");
    bt_rank_map map   = {0};
    char        own[BT_ADDRESS_BYTES];

    bt_split_address(control, own);
    if (!bt_machine_is_any(own)) return;
    if (opt->slurm && given == NULL && nodes != NULL && slots(nodes) > 1)
        refuse_control(state, control, "the job's other nodes");
    if (bt_places_read(opt, &map) != BT_OK) exit(EX_USAGE);
    for (uint32_t i = 0; i < map.n_ranks; before = map.ranks[i++].host)
        if (strcmp(map.ranks[i].host, before) != 0 && !bt_machine_is(map.ranks[i].host, true))
            refuse_control(state, control, map.ranks[i].host);
    bt_rank_map_fini(&map);
}

/* ---- without some hosts */

static void drop(bt_rank_place *p)
{
    bt_free(p->host);
    bt_free(p->cores);
    bt_free(p->devices);
}

/* A spare of the map sits down; have[] counts ranks by kind. */
static void seat_spare(bt_rank_map *map, bt_rank_kind kind, uint32_t have[3])
{
    uint32_t i = 0;

    while (map->ranks[i].kind != BT_RANK_SPARE)
        i++;
    map->ranks[i].kind = kind;
    have[kind]++;
    have[BT_RANK_SPARE]--;
}

bool bt_places_leave_out(bt_rank_map *map, bool (*is_out)(const void *ctx, const char *host),
                         const void  *ctx)
{
    uint32_t want[2] = {map->n_both != 0 ? map->n_both : map->n_prefill, map->n_decode};
    uint32_t have[3] = {0}, n = 0;

    for (uint32_t i = 0; i < map->n_ranks; i++)
        have[map->ranks[i].kind] += !is_out(ctx, map->ranks[i].host);
    if ((have[0] == 0 ? 1u : 0u) + (want[1] > 0 && have[1] == 0 ? 1u : 0u) > have[BT_RANK_SPARE])
        return false;
    for (uint32_t i = 0; i < map->n_ranks; i++) {
        if (is_out(ctx, map->ranks[i].host))
            drop(&map->ranks[i]);
        else
            map->ranks[n++] = map->ranks[i];
    }
    map->n_ranks = n;
    while (have[BT_RANK_SPARE] > 0 && (have[0] < want[0] || have[1] < want[1]))
        seat_spare(map,
                   (uint64_t)have[0] * want[1] > (uint64_t)have[1] * want[0] ? BT_RANK_DECODE
                                                                             : BT_RANK_PREFILL,
                   have);
    *(map->n_both != 0 ? &map->n_both : &map->n_prefill) = have[0];
    map->n_decode                                        = have[1];
    map->n_spares                                        = have[BT_RANK_SPARE];
    return true;
}

/* ---- as a file */

bt_status bt_places_write(const bt_rank_map *map, int fd)
{
    static const char *const ROLES[] = {"prefill", "decode", "spare"};
    bt_status                st      = BT_OK;
    FILE                    *f       = NULL;
    int                      copy    = dup(fd);

    if (copy >= 0) f = fdopen(copy, "w");
    BT_REQUIRE(f != NULL && ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0, BT_ERR_IO,
               "a rank map: %s", strerror(errno));
    for (uint32_t i = 0; i < map->n_ranks; i++) {
        const bt_rank_place *p     = &map->ranks[i];
        bool                 first = p->kind == BT_RANK_PREFILL && map->n_both != 0;

        fprintf(f, "%s %s", first ? "both" : ROLES[p->kind], p->host);
        if (p->cores[0] != '\0') fprintf(f, " cores=%s", p->cores);
        if (p->devices[0] != '\0') fprintf(f, " device=%s", p->devices);
        fputc('\n', f);
    }
    BT_REQUIRE(fflush(f) == 0, BT_ERR_IO, "a rank map: %s", strerror(errno));
out:
    if (f != NULL)
        fclose(f);
    else if (copy >= 0)
        close(copy);
    return st;
}
