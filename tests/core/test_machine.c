/* What a machine says of its memory, from a /proc and a /sys that the test writes. */
#include "core/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/test.h"

#define MIB(n) ((uint64_t)(n) << 20)

static char g_root[] = "/tmp/baton-machine-XXXXXX";

/* A file below the root, with the folders above it. */
static void put(const char *name, const char *text)
{
    char  path[512];
    FILE *f;

    snprintf(path, sizeof(path), "%s%s", g_root, name);
    for (char *at = path + strlen(g_root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
    f = fopen(path, "w");
    NEED(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void begin(const char *cgroup)
{
    char command[64];

    snprintf(command, sizeof(command), "rm -rf %s/*", g_root);
    EXPECT_EQ(system(command), 0);
    put("/proc/meminfo",
        "MemTotal:       65536000 kB\nMemFree:  1 kB\nMemAvailable:   50000000 kB\n");
    put("/proc/self/cgroup", cgroup);
}

static void expect(uint64_t total, uint64_t free_bytes)
{
    bt_machine m;

    bt_machine_look_in(g_root, &m);
    EXPECT_EQ(m.total_bytes, total);
    EXPECT_EQ(m.free_bytes, free_bytes);
}

static void memory_without_limits_is_the_kernel_s(void)
{
    begin("0::/\n");
    expect(65536000ull << 10, 50000000ull << 10);
    put("/sys/fs/cgroup/memory.max", "max\n");
    put("/sys/fs/cgroup/memory.current", "123456\n");
    expect(65536000ull << 10, 50000000ull << 10);
}

/* The group of a container is at the top of what it sees. */
static void files_in_the_page_cache_are_not_used(void)
{
    begin("0::/\n");
    put("/sys/fs/cgroup/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/memory.current", "2097152000\n");
    expect(MIB(2048), MIB(48));
    put("/sys/fs/cgroup/memory.stat", "anon 1\nfile 1990000000\ninactive_anon 7\ninactive_file "
                                      "943718400\nactive_file 104857600\n");
    expect(MIB(2048), MIB(1048));
    put("/sys/fs/cgroup/memory.current", "1000000000\n"); /* fewer: the two are not of one moment */
    expect(MIB(2048), MIB(2048));
    put("/sys/fs/cgroup/memory.current", "4294967296\n"); /* more than the limit, lowered since */
    expect(MIB(2048), 0);
    begin("9:name=systemd:/x\n4:cpu,memory:/\n0::/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "2097152000\n");
    put("/sys/fs/cgroup/memory/memory.stat", "inactive_file 5\nactive_file 5\ntotal_inactive_file "
                                             "943718400\ntotal_active_file 104857600\n");
    expect(MIB(2048), MIB(1048));
}

/* A job's limit is of a group further down; the tightest of all above it counts. */
static void limits_of_groups_above_and_below_are_heeded(void)
{
    begin("0::/slurm/job_7/step_0\n");
    put("/sys/fs/cgroup/slurm/job_7/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/slurm/job_7/memory.current", "104857600\n");
    put("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
    put("/sys/fs/cgroup/slurm/memory.max", "8589934592\n");
    put("/sys/fs/cgroup/slurm/memory.current", "8489271296\n");
    expect(MIB(1024), MIB(96));
    put("/sys/fs/cgroup/slurm/job_7/memory.high", "838860800\n"); /* Slurm's soft limit */
    expect(MIB(800), MIB(96));
    put("/sys/fs/cgroup/slurm/memory.current", "104857600\n");
    expect(MIB(800), MIB(700));
    put("/sys/fs/cgroup/slurm/job_7/memory.max", "max\n");
    expect(MIB(800), MIB(700));
    put("/sys/fs/cgroup/slurm/job_7/memory.high", "max\n");
    expect(MIB(8192), MIB(8092));
    begin("3:cpuset:/other\n4:memory:/slurm/job_7\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "1073741824\n");
    put("/sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes", "104857600\n");
    expect(MIB(1024), MIB(924));
}

static uint32_t n_cores(void)
{
    bt_machine m;

    bt_machine_look_in(g_root, &m);
    return m.n_cores;
}

/* A quota of one core and a half keeps two busy. */
static void cores_are_at_most_what_quotas_are_worth(void)
{
    uint32_t all, two;

    begin("0::/slurm/job_7/step_0\n");
    all = n_cores();
    two = all < 2 ? all : 2;
    put("/sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "max 100000\n");
    EXPECT_EQ(n_cores(), all);
    put("/sys/fs/cgroup/slurm/job_7/cpu.max", "150000 100000\n");
    EXPECT_EQ(n_cores(), two);
    put("/sys/fs/cgroup/slurm/cpu.max", "5000 10000\n");
    EXPECT_EQ(n_cores(), 1);
    begin("3:cpuset:/other\n4:cpu,cpuacct:/docker/x\n");
    put("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(n_cores(), all);
    put("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "100001\n");
    EXPECT_EQ(n_cores(), two);
    put("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "100000\n");
    EXPECT_EQ(n_cores(), 1);
}

static void hosts_that_are_each_machine_s_own_are_known(void)
{
    static const char *const OWN[]    = {"127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::"};
    static const char *const OTHERS[] = {"192.0.2.1", "2001:db8::1", "1.127.0.0", "no such host"};

    for (size_t i = 0; i < sizeof(OWN) / sizeof(OWN[0]); i++)
        EXPECT(bt_machine_is_any(OWN[i]));
    for (size_t i = 0; i < sizeof(OTHERS) / sizeof(OTHERS[0]); i++) {
        EXPECT(!bt_machine_is_any(OTHERS[i]));
        EXPECT(!bt_machine_is(OTHERS[i], false));
    }
    EXPECT(bt_machine_is("localhost", false) && bt_machine_is("127.0.0.1", false));
    EXPECT(bt_machine_is("127.9.9.9", false)); /* no interface has it */
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(memory_without_limits_is_the_kernel_s),
        BT_TEST(files_in_the_page_cache_are_not_used),
        BT_TEST(limits_of_groups_above_and_below_are_heeded),
        BT_TEST(cores_are_at_most_what_quotas_are_worth),
        BT_TEST(hosts_that_are_each_machine_s_own_are_known),
    };
    int  failed;
    char command[64];

    if (mkdtemp(g_root) == NULL) return 1;
    failed = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    snprintf(command, sizeof(command), "rm -rf %s", g_root);
    return system(command) != 0 || failed;
}
