/* baton-check - looks at every node of a cell before anything is started there. */
#include <argp.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sysexits.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/defaults.h"
#include "core/file.h"
#include "core/machine.h"
#include "core/parse.h"
#include "core/rank_flags.h"
#include "core/rank_map.h"
#include "core/settings.h"
#include "tools/check_ask.h"

/* When nobody says anything; what several programs share is in core/defaults.h. */
#define NODE_TIMEOUT_S 60
#define TOKENS         100000
#define PREFILL_RATE   1000

enum {
    NODES_MAX   = 1024,
    COMMAND_MAX = 12000,
    OPT_MAP     = 256,
    OPT_HOSTS,
    OPT_CONTROL,
    OPT_KERNELS,
    OPT_AGENT,
    OPT_NODE,
    OPT_RANKS,
    OPT_TOKENS,
    OPT_RATE,
    OPT_TIMEOUT,
    OPT_RANK_TIMEOUT,
    OPT_NODE_TIMEOUT,
    OPT_QUICK
};

static const double CLOCK_S = 1, SHM_BYTES = 64 << 20;

static const char DOC[] =
    "Checks every node of a cell before anything is loaded: that the programs start, the same "
    "model is there, the processors compute the same bits, the memory holds the weights of "
    "ranks on CPUs, the cores of the rank map and shared memory are there, the clocks agree, and "
    "the control port can be reached. "
    "Also says what the MPI found there can do "
    "when a rank is lost, and how long the pause would be.\v"
    "Each node is asked by `AGENT HOST baton-check --node ...`, where AGENT is ssh, or what "
    "OMPI_MCA_plm_rsh_agent says, or inside a Slurm job srun. This program must lie at the same "
    "path everywhere.\n\n"
    "Exit code: 0 when a cell can start, 1 when it cannot, 64 for wrong usage.\n\n"
    "Examples:\n"
    "  baton check --model models/demo\n"
    "  baton check --model /data/v3 --hosts node1,node2,node3 --control node1:50052\n"
    "  baton check --model /data/v3 --rank-map ranks.map --control node1:50052";

typedef struct {
    const char *model, *agent, *map, *kernels;
    char        control[BT_ADDRESS_BYTES]; /* "" where none is given */
    char       *names[NODES_MAX];          /* owned */
    double      share[NODES_MAX];          /* of the experts that each node holds, at least */
    bt_rank_map places;                    /* owned: what the map says */
    uint32_t    n_nodes, n_group;          /* n_group: ranks of the smaller group */
    double      n_tokens, rate, node_s;
    double      timeout_s, rank_timeout_s; /* after which a rank that hangs is lost */
    bool        node, quick;
} options;

static const struct argp_option OPTIONS[] = {
    BT_OPTION("model", 'm', "DIR", "The model's directory, as the ranks will find it"),
    BT_OPTION("rank-map", OPT_MAP, "FILE", "Rank map of the cell, whose hosts are checked"),
    BT_OPTION("hosts", OPT_HOSTS, "LIST",
              "Hosts to check: node1,node2; slots (node1:8) are ignored"),
    BT_OPTION("control", OPT_CONTROL, "HOST:PORT",
              "Where the coordinator will listen for ranks: a free address of this machine"),
    BT_OPTION_DEFAULT("kernels", OPT_KERNELS, "NAME", "auto",
                      "--kernels of the ranks, which all nodes must have"),
    BT_OPTION("agent", OPT_AGENT, "COMMAND", "How to run a command on a host (default ssh)"),
    BT_OPTION_DEFAULT("node-timeout-s", OPT_NODE_TIMEOUT, "S", BT_TEXT(NODE_TIMEOUT_S),
                      "How long each node may take to answer; all are asked at once"),
    BT_OPTION("quick", OPT_QUICK, NULL,
              "Check only that each host answers, and reaches the coordinator that already listens "
              "at --control"),
    BT_OPTION_GROUP("The pause when a rank is lost:", 1),
    BT_OPTION("group", OPT_RANKS, "N", "Ranks of the smaller group (default: from the map, or 2)"),
    BT_OPTION_DEFAULT("tokens", OPT_TOKENS, "N", BT_TEXT(TOKENS),
                      "Tokens that a lost rank holds, to be computed again"),
    BT_OPTION_DEFAULT("prefill-rate", OPT_RATE, "N", BT_TEXT(PREFILL_RATE),
                      "Tokens a second of one prefill rank, as the status page shows"),
    BT_OPTION_DEFAULT("timeout-s", OPT_TIMEOUT, "S", BT_TEXT(BT_DEFAULT_TIMEOUT_S),
                      "--timeout-s of the ranks, after which their group reports one that hangs"),
    BT_OPTION_DEFAULT("rank-timeout-s", OPT_RANK_TIMEOUT, "S", BT_TEXT(BT_DEFAULT_RANK_TIMEOUT_S),
                      "--rank-timeout-s of the coordinator, for a group of one rank"),
    BT_OPTION_FLAGS("node", OPT_NODE, NULL, OPTION_HIDDEN, "Be the one that looks"),
    {0},
};

static void add_node(struct argp_state *state, options *opt, const char *name, size_t n)
{
    if (!bt_parse_host(name, n))
        argp_error(state, "--hosts has \"%.*s\", expected a name", (int)(n < 64 ? n : 64), name);
    for (uint32_t i = 0; i < opt->n_nodes; i++)
        if (strlen(opt->names[i]) == n && strncmp(opt->names[i], name, n) == 0) return;
    if (opt->n_nodes == NODES_MAX) argp_error(state, "more than %d hosts", NODES_MAX);
    opt->names[opt->n_nodes] = strndup(name, n);
    if (opt->names[opt->n_nodes] == NULL) argp_failure(state, 1, ENOMEM, "hosts");
    opt->n_nodes++;
}

/* The ranks of one role on the host, of all of that role; each has its share of the experts, and
 * the two roles' ranks may have the same ones. */
static double share_of(const bt_rank_map *map, const char *host)
{
    uint32_t n[BT_RANK_SPARE + 1] = {0};
    uint32_t all[] = {map->n_both != 0 ? map->n_both : map->n_prefill, map->n_decode};
    double   most  = 0;

    for (uint32_t i = 0; i < map->n_ranks; i++)
        n[map->ranks[i].kind] += strcmp(map->ranks[i].host, host) == 0;
    for (int k = 0; k < BT_RANK_SPARE; k++)
        if (all[k] != 0) most = fmax(most, (double)n[k] / all[k]);
    return most;
}

static void take_map(struct argp_state *state, options *opt)
{
    const bt_rank_map *map = &opt->places;

    if (bt_rank_map_read(opt->map, &opt->places) != BT_OK) exit(EX_USAGE);
    for (uint32_t i = 0; i < map->n_ranks; i++)
        add_node(state, opt, map->ranks[i].host, strlen(map->ranks[i].host));
    for (uint32_t i = 0; i < opt->n_nodes; i++)
        opt->share[i] = share_of(map, opt->names[i]);
    if (opt->n_group == 0)
        opt->n_group = map->n_both != 0                 ? map->n_both
                       : map->n_prefill < map->n_decode ? map->n_prefill
                                                        : map->n_decode;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *opt    = state->input;
    uint64_t number = 0;
    char     why[BT_RANK_FLAG_WHY];

    switch (key) {
    case 'm': opt->model = bt_option_model(state, "--model", arg); return 0;
    case OPT_MAP: opt->map = bt_option_name(state, "--rank-map", "a file", arg); return 0;
    case OPT_HOSTS:
        do {
            add_node(state, opt, arg, strcspn(arg, ":,"));
            arg += strcspn(arg, ",");
        } while (*arg++ != '\0');
        return 0;
    case OPT_CONTROL:
        snprintf(opt->control, sizeof(opt->control), "%s",
                 bt_option_address(state, "--control", arg));
        return 0;
    case OPT_KERNELS:
        if (!bt_rank_flag_read("--kernels", arg, &number, why)) argp_error(state, "%s", why);
        opt->kernels = arg;
        return 0;
    case OPT_AGENT: opt->agent = bt_option_name(state, "--agent", "a command", arg); return 0;
    case OPT_NODE: opt->node = true; return 0;
    case OPT_QUICK: opt->quick = true; return 0;
    case OPT_RANKS:
        opt->n_group = (uint32_t)bt_option_number(state, "--group", arg, 1, UINT16_MAX);
        return 0;
    case OPT_TOKENS: opt->n_tokens = bt_option_real(state, "--tokens", arg, 1, 1e9); return 0;
    case OPT_RATE: opt->rate = bt_option_real(state, "--prefill-rate", arg, 1e-3, 1e9); return 0;
    case OPT_NODE_TIMEOUT:
        opt->node_s = bt_option_real(state, "--node-timeout-s", arg, 1e-3, 86400);
        return 0;
    case OPT_TIMEOUT:
        if (!bt_rank_flag_read("--timeout-s", arg, &number, why)) argp_error(state, "%s", why);
        opt->timeout_s = (double)number;
        return 0;
    case OPT_RANK_TIMEOUT:
        opt->rank_timeout_s = bt_option_real(state, "--rank-timeout-s", arg, 1e-3, 86400);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is not an option; the model goes after --model", arg);
        return 0;
    case ARGP_KEY_END:
        if (opt->model == NULL && !opt->quick)
            argp_error(state, "--model is missing: the directory of a model");
        if (opt->map != NULL) take_map(state, opt);
        if (opt->n_nodes == 0) add_node(state, opt, "localhost", strlen("localhost"));
        for (uint32_t i = 0; opt->map == NULL && i < opt->n_nodes; i++)
            opt->share[i] = 1.0 / opt->n_nodes; /* a rank on each, all in one group */
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- asking */

static void make_command(const options *opt, const char *host, char *buf, size_t capacity)
{
    char        path[PATH_MAX], self[PATH_MAX + 64], model[2048], control[4 * BT_ADDRESS_BYTES];
    char        kernels[64];
    char        probe[PATH_MAX + 4096], quoted[8192], name[1024];
    const char *agent = opt->agent;

    if (!bt_own_path(path)) snprintf(path, sizeof(path), "baton-check");
    bt_check_quote(path, self, sizeof(self));
    bt_check_quote(opt->model != NULL ? opt->model : "", model, sizeof(model));
    bt_check_quote(opt->control, control, sizeof(control));
    bt_check_quote(opt->kernels, kernels, sizeof(kernels));
    bt_check_quote(host, name, sizeof(name));
    snprintf(probe, sizeof(probe), "%s --node %s%s%s%s%s%s", self,
             opt->quick ? "--quick" : "--model ", opt->quick ? "" : model,
             opt->quick ? "" : " --kernels ", opt->quick ? "" : kernels,
             opt->control[0] != '\0' ? " --control " : "", opt->control[0] != '\0' ? control : "");
    if (agent == NULL) agent = getenv("OMPI_MCA_plm_rsh_agent");
    if (bt_machine_is(host, !opt->quick)) { /* no agent is needed, as mpirun needs none */
        snprintf(buf, capacity, "%s 2>&1", probe);
    } else if (agent == NULL && getenv("SLURM_JOB_ID") != NULL) {
        snprintf(buf, capacity, "srun --overlap -N1 -n1 -w %s %s 2>&1", name, probe);
    } else {
        bt_check_quote(probe, quoted, sizeof(quoted));
        snprintf(buf, capacity, "%s %s %s 2>&1 </dev/null",
                 agent != NULL ? agent : "ssh -o BatchMode=yes -o ConnectTimeout=10", name, quoted);
    }
}

static bt_status ask_all(const options *opt, bt_asked_node *nodes)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < opt->n_nodes; i++) {
        nodes[i].host    = opt->names[i];
        nodes[i].command = bt_calloc(1, COMMAND_MAX);
        BT_REQUIRE(nodes[i].command != NULL, BT_ERR_NO_MEMORY, "%u commands", opt->n_nodes);
        make_command(opt, opt->names[i], nodes[i].command, COMMAND_MAX);
    }
    BT_TRY(bt_check_ask(nodes, opt->n_nodes, (uint64_t)(opt->node_s * BT_NS_PER_S)));
out:
    for (uint32_t i = 0; i < opt->n_nodes; i++)
        bt_free(nodes[i].command);
    return st;
}

/* ---- the verdict */

static uint32_t g_wrong;

BT_PRINTF(2, 3) static void wrong(const char *host, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    printf("%-12s WRONG  ", host);
    vprintf(fmt, ap);
    putchar('\n');
    va_end(ap);
    g_wrong++;
}

static double gib(uint64_t bytes) { return (double)bytes / (1u << 30); }

/* Steps and pages aside: those follow from options of the ranks. */
static void judge_memory(const char *host, const bt_node_facts *f, double share)
{
    double held   = (double)f->expert_bytes * share;
    double need   = (double)(f->loaded_bytes - f->expert_bytes) + held;
    double usable = (double)f->memory_bytes / 100 * BT_MEMORY_PERCENT;

    if (f->memory_bytes != 0 && need > usable)
        wrong(
            host,
            "its ranks need %.2f GiB or more for weights and may take %.2f GiB, %d %% of the free "
            "memory",
            need / (1u << 30), usable / (1u << 30), BT_MEMORY_PERCENT);
}

/* "0-3,8"; cut where it is too long. */
static void list_cores(const cpu_set_t *set, char *buf, size_t capacity)
{
    size_t at = 0;

    buf[0] = '\0';
    for (int first = 0, end; first < CPU_SETSIZE && at < capacity; first = end + 1) {
        for (end = first; end < CPU_SETSIZE && CPU_ISSET(end, set);)
            end++;
        if (end == first) continue;
        at += (size_t)snprintf(buf + at, capacity - at, "%s%d", at > 0 ? "," : "", first);
        if (end - first > 1 && at < capacity)
            at += (size_t)snprintf(buf + at, capacity - at, "-%d", end - 1);
    }
}

/* A rank that cannot have all of its cores does not start: launch/bind.c. */
static void judge_cores(const char *host, const bt_node_facts *f, const bt_rank_map *map)
{
    cpu_set_t absent;
    uint32_t  cores[BT_RANK_LIST_MAX], n;
    char      wanted[BT_CHECK_TEXT], there[BT_CHECK_TEXT];

    CPU_ZERO(&absent);
    for (uint32_t i = 0; i < map->n_ranks; i++) {
        if (strcmp(map->ranks[i].host, host) != 0 ||
            !bt_rank_list_parse(map->ranks[i].cores, CPU_SETSIZE, cores, &n))
            continue;
        for (uint32_t k = 0; k < n; k++)
            if (!CPU_ISSET(cores[k], &f->cores)) CPU_SET(cores[k], &absent);
    }
    if (CPU_COUNT(&absent) == 0 || CPU_COUNT(&f->cores) == 0 /* not known */) return;
    list_cores(&absent, wanted, sizeof(wanted));
    list_cores(&f->cores, there, sizeof(there));
    wrong(host, "the rank map gives its ranks cores %s; they may have %s", wanted, there);
}

static void judge_alone(const options *opt, const bt_asked_node *n, double share)
{
    const bt_node_facts *f      = &n->facts;
    const char          *host   = n->host;
    uint32_t             before = g_wrong;

    if (!f->answered) {
        const char *last = n->last[0] != '\0' ? n->last : "nothing came";

        if (n->late)
            wrong(host, "it has not answered within %.1f s: %s", opt->node_s, last);
        else
            wrong(host, "it does not answer: %s", last);
        return;
    }
    for (uint32_t i = 0; i < f->n_trouble; i++)
        wrong(host, "%s", f->trouble[i]);
    if (opt->quick) {
        if (g_wrong == before) printf("%-12s ok\n", host);
        return;
    }
    if (!(fabs(n->skew_s) <= CLOCK_S))
        wrong(host, "its clock is %.1f s off: logs of several nodes could not be read together",
              n->skew_s);
    if (f->shm_bytes != 0 && (double)f->shm_bytes < SHM_BYTES)
        wrong(host, "/dev/shm has %llu MiB left, expected at least 64",
              (unsigned long long)f->shm_bytes >> 20);
    judge_memory(host, f, share);
    judge_cores(host, f, &opt->places);
    if (g_wrong == before)
        printf(
            "%-12s ok     %u cores, %.1f GiB of memory free, model %016llx of %.2f GiB, %.2f GB/s "
            "from its files, %s, %s\n",
            host, f->n_cores, gib(f->memory_bytes), (unsigned long long)f->fingerprint,
            gib(f->weight_bytes), f->read_rate * 1e-9, f->arithmetic, f->mpi);
}

static void judge_together(const bt_asked_node *nodes, uint32_t n)
{
    const bt_asked_node *first = NULL;

    for (uint32_t i = 0; i < n; i++) {
        const bt_node_facts *f = &nodes[i].facts, *g;
        const char          *a, *b = nodes[i].host;

        if (!f->answered) continue;
        if (first == NULL) first = &nodes[i];
        g = &first->facts;
        a = first->host;
        if (strcmp(f->version, g->version) != 0)
            wrong(b, "it has Baton %s, %s has %s", f->version, a, g->version);
        if (f->fingerprint != 0 && g->fingerprint != 0 && f->fingerprint != g->fingerprint)
            wrong(b, "its model is another one (%016llx) than on %s (%016llx)",
                  (unsigned long long)f->fingerprint, a, (unsigned long long)g->fingerprint);
        if (strcmp(f->arithmetic, g->arithmetic) != 0)
            wrong(b,
                  "it computes other bits (%s) than %s (%s): give --kernels a family that all have",
                  f->arithmetic, a, g->arithmetic);
        if (f->mpi[0] != '\0' && g->mpi[0] != '\0' && strcmp(f->mpi, g->mpi) != 0)
            wrong(b, "it has %s, %s has %s", f->mpi, a, g->mpi);
    }
}

/* The coordinator's port, held open while the nodes try to reach it.  Any free one (port 0) then
 * stands in `address`. */
static int hold_port(char address[BT_ADDRESS_BYTES])
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    char            host[BT_ADDRESS_BYTES];
    const char     *port = bt_split_address(address, host);
    int             fd = -1, one = 1, code;

    code = getaddrinfo(host, port, &hints, &list);
    if (code != 0) {
        wrong("here", "the control address %s: %s", address, gai_strerror(code));
        return -1;
    }
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, NODES_MAX) != 0)
        wrong("here", "the control address %s cannot be taken: %s", address, strerror(errno));
    else if (strtoul(port, NULL, 10) == 0)
        bt_join_address(host, (uint16_t)bt_machine_port(fd), address);
    freeaddrinfo(list);
    return fd;
}

/* What Open MPI makes of the ranks that are left when some have died. */
static void tell_remedies(const bt_asked_node *nodes, uint32_t n)
{
    bool four = true, some = true;

    for (uint32_t i = 0; i < n; i++) {
        bool is_four = strstr(nodes[i].facts.mpi, "Open MPI) 4") != NULL;

        four = four && is_four;
        some = some && (is_four || strstr(nodes[i].facts.mpi, "Open MPI) 5") != NULL);
    }
    printf("%-12s %s\n", "remedies",
           four   ? "stop, restart, replace (of ranks and of hosts that die)"
           : some ? "stop, restart, replace (of ranks that die; the loss of a host ends all ranks)"
                  : "stop, restart; replace needs Open MPI 4 or 5 on every node");
}

static void tell_pause(const options *opt, const bt_asked_node *nodes)
{
    uint64_t bytes   = nodes[0].facts.weight_bytes;
    double   slowest = 0, reload, replay = opt->n_tokens / opt->rate;
    double   n_group = opt->n_group > 0 ? opt->n_group : 2;

    for (uint32_t i = 0; i < opt->n_nodes; i++)
        if (nodes[i].facts.read_rate > 0 && (slowest == 0 || nodes[i].facts.read_rate < slowest))
            slowest = nodes[i].facts.read_rate;
    if (slowest == 0 || bytes == 0) return;
    /* The lost rank's share of the experts, which are nearly all of the weights, split among the
     * others of its group, who read at the same time. */
    reload =
        n_group > 1 ? (double)bytes / n_group / (n_group - 1) / slowest : (double)bytes / slowest;
    printf("%-12s a killed rank, by estimate: 0.3 s to detect\n"
           "%-12s + %.1f s to reload (%.2f GiB for each of %.0f ranks at %.2f GB/s)\n"
           "%-12s + %.1f s to replay (--tokens %.0f at --prefill-rate %.0f)\n"
           "%-12s = %.1f s; one that hangs: %.0f s more;\n"
           "%-12s a restarted cell reloads for %.1f s\n",
           "pause", "", reload, (double)bytes / n_group / fmax(n_group - 1, 1) / (1u << 30),
           fmax(n_group - 1, 1), slowest * 1e-9, "", replay, opt->n_tokens, opt->rate, "",
           0.3 + reload + replay, n_group > 1 ? opt->timeout_s : opt->rank_timeout_s, "",
           (double)bytes / n_group / slowest);
}

#define NOT_QUICK(name)                                                                       \
    {                                                                                         \
        name, BT_WITH, "quick", NULL, "since only answers and the control port are looked at" \
    }
static const bt_setting_idle IDLE[] = {
    NOT_QUICK("model"),          NOT_QUICK("kernels"),
    NOT_QUICK("group"),          NOT_QUICK("tokens"),
    NOT_QUICK("prefill-rate"),   NOT_QUICK("timeout-s"),
    NOT_QUICK("rank-timeout-s"), {NULL, BT_WITH, NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    const struct argp      parser = {OPTIONS, parse, NULL, DOC, NULL, NULL, NULL};
    const bt_settings_spec spec   = {&parser, NULL, IDLE};
    static options         opt    = {.kernels        = "auto",
                                     .n_tokens       = TOKENS,
                                     .rate           = PREFILL_RATE,
                                     .timeout_s      = BT_DEFAULT_TIMEOUT_S,
                                     .rank_timeout_s = BT_DEFAULT_RANK_TIMEOUT_S,
                                     .node_s         = NODE_TIMEOUT_S};
    static bt_asked_node   nodes[NODES_MAX];
    int                    port = -1;

    bt_log_init_verb("check", BT_LOG_INFO); /* reading a rank map may fail */
    argp_parse(&parser, argc, argv, 0, NULL, &opt);
    if (opt.node) bt_log_init_verb("check", BT_LOG_ERROR);
    if (bt_settings_check_flags(&spec, argc, argv) != BT_OK) return EX_USAGE;
    if (opt.node) {
        bt_check_node_tell(opt.quick ? NULL : opt.model,
                           opt.control[0] != '\0' ? opt.control : NULL, opt.kernels);
        return EXIT_SUCCESS;
    }
    if (opt.control[0] != '\0' && !opt.quick) port = hold_port(opt.control);
    if (ask_all(&opt, nodes) != BT_OK) return EXIT_FAILURE;
    for (uint32_t i = 0; i < opt.n_nodes; i++)
        judge_alone(&opt, &nodes[i], opt.share[i]);
    judge_together(nodes, opt.n_nodes);
    if (!opt.quick) {
        tell_remedies(nodes, opt.n_nodes);
        tell_pause(&opt, nodes);
    }
    if (g_wrong != 0) printf("%u found wrong: a cell would not start, or not serve\n", g_wrong);
    if (port >= 0) close(port);
    bt_rank_map_fini(&opt.places);
    return g_wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
