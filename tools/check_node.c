#include "tools/check_node.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/machine.h"
#include "core/parse.h"
#include "model/model.h"
#include "model/weights.h"
#include "tools/census.h"

enum { CONNECT_MS = 3000, READ_BYTES = 64 << 20, BLOCK = 1 << 20, TMP_BYTES = 16 << 20 };

BT_PRINTF(1, 2) static void trouble(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fputs("trouble ", stdout);
    vprintf(fmt, ap);
    putchar('\n');
    va_end(ap);
}

/* ---- programs */

void bt_check_quote(const char *text, char *buf, size_t capacity)
{
    size_t at = 0;

    buf[at++] = '\'';
    for (; *text != '\0' && at + 6 < capacity; text++)
        if (*text == '\'')
            at += (size_t)snprintf(buf + at, capacity - at, "'\\''");
        else
            buf[at++] = *text;
    buf[at++] = '\'';
    buf[at]   = '\0';
}

/* The first line that the command writes, and whether it ended with 0. */
static bool first_line(const char *command, char *buf, size_t capacity)
{
    FILE *p = popen(command, "re");
    char  rest[512];

    buf[0] = '\0';
    if (p == NULL) return false;
    if (fgets(buf, (int)capacity, p) == NULL) buf[0] = '\0';
    buf[strcspn(buf, "\n")] = '\0';
    while (fgets(rest, sizeof(rest), p) != NULL)
        continue;
    return pclose(p) == 0;
}

/* What a program of ours says to this. */
static bool first_line_of(const char *name, const char *arguments, char *buf, size_t capacity)
{
    char path[PATH_MAX], quoted[PATH_MAX + 64], command[PATH_MAX + 128];

    snprintf(buf, capacity, "its path is too long");
    if (!bt_path_beside(name, path)) return false;
    bt_check_quote(path, quoted, sizeof(quoted));
    snprintf(command, sizeof(command), "%s %s", quoted, arguments);
    return first_line(command, buf, capacity);
}

/* One that cannot start says why: a library that is not there, above all. */
static void look_at_program(const char *name)
{
    char line[BT_CHECK_TEXT];

    if (!first_line_of(name, "--help 2>&1 >/dev/null", line, sizeof(line)))
        trouble("%s does not start: %s", name, line);
}

/* The mpirun that a start would use. */
static void look_at_mpi(void)
{
    char line[BT_CHECK_TEXT], info[BT_CHECK_TEXT];

    /* On stderr others may come before it: ld.so that does not find what LD_PRELOAD names. */
    if (!first_line_of("baton-launch", "--mpirun-version 2>/dev/null", line, sizeof(line))) {
        first_line_of("baton-launch", "--mpirun-version 2>&1", line, sizeof(line));
        trouble("no mpirun: %s", line[0] != '\0' ? line : "it says nothing");
        return;
    }
    /* Where the file with mpirun's words is missing, as in Ubuntu's packages of Open MPI 5. */
    if (strstr(line, "(Open MPI)") == NULL &&
        first_line("\"$(dirname \"$(command -v \"${BATON_MPIRUN:-mpirun}\")\")/ompi_info\" "
                   "--version 2>/dev/null",
                   info, sizeof(info)) &&
        strncmp(info, "Open MPI v", 10) == 0)
        printf("mpi mpirun (Open MPI) %s\n", info + 10);
    else
        printf("mpi %s\n", line);
}

/* ---- the model */

/* How fast the checkpoint's largest tensor comes from its file, past the page cache. */
static double read_rate(const bt_safetensors *st)
{
    const bt_tensor *most  = NULL;
    char            *block = NULL;
    uint64_t         begin, n = 0;
    double           rate = 0;
    int              fd;

    for (size_t i = 0; i < bt_safetensors_count(st); i++)
        if (most == NULL || bt_safetensors_at(st, i)->bytes > most->bytes)
            most = bt_safetensors_at(st, i);
    if (most == NULL) return 0;
    fd = open(most->file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    if ((block = bt_calloc(1, BLOCK)) == NULL) goto out;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    begin = bt_now_ns();
    while (n < READ_BYTES) {
        ssize_t got = read(fd, block, BLOCK);

        if (got <= 0) break;
        n += (uint64_t)got;
    }
    rate = (double)n / ((double)(bt_now_ns() - begin) * 1e-9);
out:
    bt_free(block);
    close(fd);
    return rate;
}

/* What all of the model takes in the host's memory. */
static void look_at_size(const bt_model_config *cfg, const bt_safetensors *st)
{
    char      text[BT_CHECK_TEXT];
    bt_census c;
    uint32_t  gpu;

    if (bt_device_cuda_deal(NULL, 0, &gpu, text, sizeof(text))) return;
    bt_census_take(st, cfg, &c);
    printf("needs %llu %llu\n", (unsigned long long)bt_census_served(c.loaded),
           (unsigned long long)c.loaded[BT_PART_EXPERTS]);
}

static void look_at_model(const char *dir)
{
    bt_model_config cfg;
    bt_safetensors *st    = NULL;
    uint64_t        bytes = 0, print;

    if (bt_model_config_read(dir, &cfg) != BT_OK || bt_safetensors_open(dir, &st) != BT_OK ||
        bt_weights_check(&cfg, st) != BT_OK) {
        trouble("the model: %s", bt_error_text());
        goto out;
    }
    for (size_t i = 0; i < bt_safetensors_count(st); i++)
        bytes += bt_safetensors_at(st, i)->bytes;
    print = bt_model_fingerprint(&cfg, st); /* first: what read_rate() drops may be in the cache */
    printf("model %016llx %llu %.0f\n", (unsigned long long)print, (unsigned long long)bytes,
           read_rate(st));
    look_at_size(&cfg, st);
out:
    bt_safetensors_close(st);
}

/* ---- the machine */

/* That ranks here can be bound to, whatever this process is bound to: asked for all, the kernel
 * gives those of the control group. */
static void look_at_cores(void)
{
    cpu_set_t own, all;

    memset(&all, 0xff, sizeof(all));
    if (sched_getaffinity(0, sizeof(own), &own) != 0) return;
    if (sched_setaffinity(0, sizeof(all), &all) != 0 ||
        sched_getaffinity(0, sizeof(all), &all) != 0)
        CPU_ZERO(&all);
    sched_setaffinity(0, sizeof(own), &own);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) printf("core %d\n", i);
}

static void look_at_machine(const char *kernels)
{
    bt_device_cpu_options options = {.n_threads = 1, .kernels = kernels};
    bt_device            *dev     = NULL;
    bt_machine            machine;
    struct statvfs        shm, disk;
    const char           *tmp = bt_temporary_folder();

    bt_machine_look(&machine);
    printf("machine %llu %u\n", (unsigned long long)machine.free_bytes, machine.n_cores);
    look_at_cores();
    if (bt_device_cpu_create(&options, &dev) == BT_OK)
        printf("arithmetic %s\n", dev->arithmetic);
    else
        trouble("the processor: %s", bt_error_text());
    bt_device_destroy(dev);
    if (statvfs("/dev/shm", &shm) != 0 || access("/dev/shm", W_OK | X_OK) != 0)
        trouble("/dev/shm cannot be written: %s; ranks of a node then exchange through files",
                strerror(errno));
    else
        printf("shm %llu\n", (unsigned long long)shm.f_bavail * shm.f_frsize);
    if (access(tmp, W_OK | X_OK) != 0)
        trouble("TMPDIR %s cannot be written: %s; mpirun has its session's files there", tmp,
                strerror(errno));
    else if (statvfs(tmp, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < TMP_BYTES)
        trouble("TMPDIR %s has %llu MiB left, expected %d: mpirun has its session's files there",
                tmp, (unsigned long long)disk.f_bavail * disk.f_frsize >> 20, TMP_BYTES >> 20);
}

/* ---- the network */

static bool connects_to(const struct addrinfo *a)
{
    int           fd    = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct pollfd p     = {.fd = fd, .events = POLLOUT};
    int           error = 0;
    socklen_t     n     = sizeof(error);

    if (fd < 0) return false;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0 &&
        (errno != EINPROGRESS || poll(&p, 1, CONNECT_MS) != 1 ||
         getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0 || error != 0)) {
        errno = error != 0 ? error : errno == EINPROGRESS ? ETIMEDOUT : errno;
        close(fd);
        return false;
    }
    close(fd);
    return true;
}

/* To any of the addresses, as gRPC does. */
static bool connects(const struct addrinfo *list)
{
    for (; list != NULL; list = list->ai_next)
        if (connects_to(list)) return true;
    return false;
}

static void look_at_control(const char *address)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char            host[BT_ADDRESS_BYTES];
    const char     *port = bt_split_address(address, host);
    int             code = getaddrinfo(host, port, &hints, &list);

    if (code != 0)
        trouble("the control address %s: %s", address, gai_strerror(code));
    else if (!connects(list))
        trouble("the control address %s cannot be reached from here: %s", address, strerror(errno));
    if (code == 0) freeaddrinfo(list);
}

void bt_check_node_tell(const char *model, const char *control, const char *kernels)
{
    printf("clock %.6f\n", bt_unix_s()); /* told at once: the rest takes a while */
    fflush(stdout);
    printf("version %s\n", BT_VERSION);
    if (model != NULL) {
        look_at_program("baton-worker");
        look_at_program("baton-launch");
        look_at_mpi();
        look_at_machine(kernels);
        look_at_model(model);
    }
    if (control != NULL) look_at_control(control);
    printf("end\n");
}

void bt_check_node_hear(bt_node_facts *f, const char *line)
{
    unsigned long long a, b;
    unsigned           core;

    if (sscanf(line, "version %255[^\n]", f->version) == 1) return;
    if (sscanf(line, "mpi %255[^\n]", f->mpi) == 1) return;
    if (sscanf(line, "arithmetic %255[^\n]", f->arithmetic) == 1) return;
    if (sscanf(line, "machine %llu %u", &a, &f->n_cores) == 2) f->memory_bytes = a;
    if (sscanf(line, "core %u", &core) == 1 && core < CPU_SETSIZE) CPU_SET(core, &f->cores);
    if (sscanf(line, "shm %llu", &a) == 1) f->shm_bytes = a;
    if (sscanf(line, "model %llx %llu %lf", &a, &b, &f->read_rate) == 3) {
        f->fingerprint  = a;
        f->weight_bytes = b;
    }
    if (sscanf(line, "needs %llu %llu", &a, &b) == 2) {
        f->loaded_bytes = a;
        f->expert_bytes = b;
    }
    if (sscanf(line, "clock %lf", &f->unix_s) == 1) return;
    f->answered = f->answered || strcmp(line, "end") == 0;
    if (f->n_trouble < sizeof(f->trouble) / sizeof(f->trouble[0]) &&
        sscanf(line, "trouble %255[^\n]", f->trouble[f->n_trouble]) == 1)
        f->n_trouble++;
}
