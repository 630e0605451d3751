/* Without Open MPI: what a script that stands for mpirun is told, and what is made of what it says
 * and does. */
#include "tests/launch/launch.h"

/* mpirun ends without a word when it does not know a host. */
static void launch_mpirun_that_starts_nothing_is_told(void)
{
    const char *const silent[] = {"BATON_MPIRUN=/bin/false", NULL};
    const char       *argv[]   = {g_launch, "-n", "1", "--host", "localhost", "--", "true", NULL};

    EXPECT_EQ(launch("true", silent), 1);
    EXPECT_HAS(g_command.output, "mpirun has ended: exit code 1, before any rank: `mpirun -n 1 ");
    EXPECT_EQ(bt_command_run(&g_command, argv, silent, END_S), 1);
    EXPECT_HAS(g_command.output, "mpirun has ended: exit code 1; where no rank has said why, "
                                 "`mpirun --host HOST hostname` tells whether");
}

/* On other hosts its daemons would not start; how they are started on this one is no matter. */
static void launch_mpirun_that_other_hosts_cannot_start_is_told(void)
{
    static const char WARNING[] = "put it where the path has no blanks";
    char              folder[]  = "/tmp/baton-test-XXXXXX", mpirun[64], named[96];
    const char *const silent[]  = {named, NULL};
    const char       *argv[]    = {g_launch, "-n", "1", "--host", "localhost", "--", "true", NULL};

    EXPECT(mkdtemp(folder) != NULL);
    for (int blank = 0; blank < 2; blank++) {
        snprintf(mpirun, sizeof(mpirun), "%s/%smpirun", folder, blank ? "a " : "");
        snprintf(named, sizeof(named), "BATON_MPIRUN=%s", mpirun);
        EXPECT_EQ(symlink("/bin/false", mpirun), 0);
        EXPECT_EQ(bt_command_run(&g_command, argv, silent, END_S), 1);
        EXPECT((strstr(g_command.output, WARNING) != NULL) == (blank != 0));
        EXPECT_EQ(launch("true", silent), 1);
        EXPECT(strstr(g_command.output, WARNING) == NULL);
        unlink(mpirun);
    }
    EXPECT_EQ(rmdir(folder), 0);
}

/* 5 has variables of its own. */
static void launch_mpirun_is_asked_what_it_is(void)
{
    static const struct {
        const char *says;
        bool        five;
    } CASES[] = {
        {"echo 'mpirun (Open MPI) 5.0.7'",                             true },
        {"echo warning >&2; echo 'mpirun (Open MPI) 5.0.7'; exit 1",   true },
        {"echo \"couldn't open share/prte/help-schizo-ompi.txt\" >&2", true },
        {"echo 'mpirun (Open MPI) 4.1.4'",                             false},
        {"exit 1",                                                     false}
    };
    own_mpirun  mpirun;
    char        variable[64];
    const char *in_path[] = {variable, "BATON_MPIRUN", NULL};

    make_mpirun(&mpirun);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        write_mpirun(&mpirun,
                     "[ $1 != --version ] || { %s; exit; }\n"
                     "echo binding ${PRTE_MCA_hwloc_default_binding_policy-unset}\n",
                     CASES[i].says);
        launch("true", mpirun.environment);
        EXPECT_HAS(g_command.output, CASES[i].five ? "binding none\n" : "binding unset\n");
        EXPECT(strstr(g_command.output, "yntax") == NULL);
    }
    snprintf(variable, sizeof(variable), "PATH=/nowhere:%s", mpirun.folder);
    launch("true", in_path);
    EXPECT_HAS(g_command.output, "binding unset\n");
    remove_mpirun(&mpirun);
}

/* What users say to 4, as the documents have it. */
static void launch_users_words_reach_5(void)
{
    static const char *const PRINTED[] = {"prte 10.1.0.0/16 ", "pmix unset ", "oob unset "};
    own_mpirun               mpirun;
    const char *environment[] = {mpirun.variable, "OMPI_MCA_oob_tcp_if_include=10.1.0.0/16", NULL};
    const char *argv[]        = {g_launch, "-n", "1", "--host", "localhost", "--", "true", NULL};

    make_mpirun(&mpirun);
    write_mpirun(&mpirun, "[ $1 != --version ] || exec echo '(Open MPI) 5.0.7'\n"
                          "echo prte $PRTE_MCA_prte_if_include "
                          "pmix ${PMIX_MCA_ptl_base_if_include-unset} "
                          "oob ${OMPI_MCA_oob_tcp_if_include-unset} .\n");
    EXPECT_EQ(bt_command_run(&g_command, argv, environment, END_S), 0);
    for (size_t i = 0; i < sizeof(PRINTED) / sizeof(PRINTED[0]); i++)
        EXPECT_HAS(g_command.output, PRINTED[i]);
    remove_mpirun(&mpirun);
}

/* What a job gives mpirun: its arguments, its host file, and the variables, of which the user's
 * win. */
static void expect_told(const char *version, const char *const *options, const char *const *own,
                        const char *const *has, const char *const *has_not)
{
    own_mpirun  mpirun;
    const char *environment[9] = {"BATON_MPIRUN=/bin/false", /* which the option goes before */
                                  "BATON_SECRET", "BATON_SECRET_FILE", "LD_LIBRARY_PATH"};
    const char *argv[10]       = {g_launch, "--mpirun", mpirun.path};
    size_t      n              = 3;

    make_mpirun(&mpirun);
    write_mpirun(&mpirun,
                 "[ $1 != --version ] || exec echo '(Open MPI) %s'\n"
                 "echo \"$*\"; env\n"
                 "for i; do [ \"$before\" != --hostfile ] || cat $i; before=$i; done\n",
                 version);
    for (size_t i = 0; i < 4 && own[i] != NULL; i++)
        environment[i + 4] = own[i];
    for (; *options != NULL; options++)
        argv[n++] = *options;
    argv[n++] = "--";
    argv[n]   = "true";
    bt_command_run(&g_command, argv, environment, END_S);
    for (size_t i = 0; has[i] != NULL; i++)
        EXPECT_HAS(g_command.output, has[i]);
    for (size_t i = 0; has_not[i] != NULL; i++)
        EXPECT(strstr(g_command.output, has_not[i]) == NULL);
    remove_mpirun(&mpirun);
}

static void launch_mpirun_is_told_what_the_job_needs(void)
{
    static const struct {
        const char *version, *options[4], *own[3], *has[5], *has_not[4];
    } CASES[] = {
        {"4.1.6",
         {"-n2"},
         {NULL},
         {"\nOMPI_MCA_btl=vader,self\n", "\nOMPI_MCA_plm=isolated\n"},
         {"enable_recovery", "local_tmpdir_base", "plm_slurm_args"}},
        {"4.1.6",
         {"-n2", "--on-death=replace"},
         {"OMPI_MCA_btl=tcp,self", "OMPI_MCA_orte_tmpdir_base=/user"},
         {"\nOMPI_MCA_btl=tcp,self\n", "\nOMPI_MCA_orte_enable_recovery=1\n",
          "\nBT_RANK_ENDINGS=/"},
         {"_tmpdir_base=/user", "--tell-end", "-x BATON_SECRET"}   },
        {"5.0.7",
         {"-n2", "--on-death=replace"},
         {NULL},
         {"\nOMPI_MCA_btl=sm,self\n", "\nPRTE_MCA_state_base_recoverable=1\n"},
         {"enable_recovery", "OMPI_MCA_plm="}                      },
        {"5.0.7",
         {"-n2"},
         {"OMPI_MCA_plm_rsh_agent=a", "PRTE_MCA_plm_ssh_agent=b"},
         {"\nPRTE_MCA_plm_ssh_agent=b\n"},
         {"recoverable"}                                           },
        {"4.1.6",
         {"-n2", "--on-death=replace", "--host=localhost"},
         {"BATON_SECRET=s", "BT_RANK_ENDINGS=/other"},
         {"--host localhost -x BATON_SECRET ", " --shm /", " --tell-end -- true\n",
          "\nOMPI_MCA_orte_local_tmpdir_base=/"},
         {"OMPI_MCA_btl=", "BT_RANK_ENDINGS", "--bind"}            },
        {"4.1.6",
         {"-n2", "--host=localhost"},
         {"OMPI_MCA_orte_tmpdir_base=/user"},
         {"\nOMPI_MCA_orte_tmpdir_base=/user\n"},
         {"local_tmpdir_base", "--tell-end"}                       },
        {"4.1.6",
         {"-n2", "--slurm"},
         {"SLURM_JOB_ID=1"},
         {"\nOMPI_MCA_plm_slurm_args=--overlap\n", " --shm /"},
         {"--prtemca"}                                             },
        {"5.0.7",
         {"-n2", "--slurm"},
         {"SLURM_JOB_ID=1"},
         {"-n 2 --prtemca plm_slurm_args --overlap /"},
         {"OMPI_MCA_plm_slurm_args"}                               },
        {"5.0.7",
         {"-n2", "--host=localhost"},
         {"PRTE_MCA_prte_tmpdir_base=/user"},
         {"\nPRTE_MCA_prte_tmpdir_base=/user\n"},
         {"local_tmpdir_base"}                                     },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_told(CASES[i].version, CASES[i].options, CASES[i].own, CASES[i].has,
                    CASES[i].has_not);
}

/* Open MPI leaves loopback out by itself, and ends where both of its lists are given, one of them
 * perhaps by a file. */
static void launch_mpi_goes_by_loopback_where_there_is_nothing_else(void)
{
#define BRIDGE  "ip link add d0 type bridge && "
#define ADDRESS "ip addr add 192.0.2.1/24 dev d0 && "
#define UP      "ip link set lo up && ip link set d0 up && "
    static const struct {
        const char *before, *own, *option, *has;
    } CASES[] = {
        {"",                "A=",                               "",                 "in lo ex unset\n"   },
        {"",                "A=",                               "--host=localhost", "in unset ex unset\n"},
        {"",                "OMPI_MCA_btl_tcp_if_include=eth0", "",                 "in eth0 ex unset\n" },
        {"",                "OMPI_MCA_btl_tcp_if_exclude=eth0", "",                 "in unset ex eth0\n" },
        {BRIDGE UP,         "A=",                               "",                 "in lo ex unset\n"   },
        {BRIDGE ADDRESS,    "A=",                               "",                 "in lo ex unset\n"   },
        {BRIDGE ADDRESS UP, "A=",                               "",                 "in unset ex unset\n"},
    };
    own_mpirun  mpirun;
    char        script[512];
    const char *argv[] = {
        "/usr/bin/unshare", "--user", "--map-root-user", "--net", "/bin/sh", "-c", script,
        g_launch,           NULL};

    if (system("unshare --user --map-root-user --net ip link >/dev/null") != 0) {
        printf("skipped: no namespaces of networks here\n");
        return;
    }
    make_mpirun(&mpirun);
    write_mpirun(&mpirun, "[ $1 != --version ] || exec echo '(Open MPI) 4.1.6'\n"
                          "echo in ${OMPI_MCA_btl_tcp_if_include-unset} "
                          "ex ${OMPI_MCA_btl_tcp_if_exclude-unset}\n");
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        snprintf(script, sizeof(script), "%s exec env %s \"$0\" -n2 %s -- true", CASES[i].before,
                 CASES[i].own, CASES[i].option);
        bt_command_run(&g_command, argv, mpirun.environment, END_S);
        EXPECT_HAS(g_command.output, CASES[i].has);
        EXPECT_EQ(strstr(g_command.output, "the loopback interface is down") == NULL,
                  strstr(CASES[i].before, UP) != NULL);
    }
    remove_mpirun(&mpirun);
}

/* Hosts one a rank, this machine's by one name; bindings where there are any. */
static void launch_mpirun_is_told_the_rank_map(void)
{
    char self[256] = "", first[300], second[300];
    const struct {
        const char *map, *has[4], *has_not[2];
    } CASES[] = {
        {"prefill localhost cores=0\ndecode 192.0.2.1\n",
         {"--map-by seq", " --bind 0/;/ --", first},
         {NULL}                                                                                   },
        {"prefill 192.0.2.1\ndecode localhost device=1\n", {" --bind /;/1 --", second}, {NULL}    },
        {"both localhost\n",                               {"-n 1 --hostfile /"},       {"--bind"}},
    };
    char              path[]    = "/tmp/baton-map-XXXXXX";
    int               fd        = mkstemp(path);
    const char       *options[] = {"--rank-map", path, NULL};
    const char *const own[]     = {NULL};
    const char *const most[]    = {"--rank-map", path, "--on-death=replace", NULL};
    const char *const all[]     = {"SLURM_JOB_ID=1", "BATON_SECRET=s", "BATON_SECRET_FILE=f",
                                   "LD_LIBRARY_PATH=/nowhere", NULL};
    const char *const has[] = {" -x LD_LIBRARY_PATH ", " --bind 0/1 --tell-end -- true\n", NULL};

    EXPECT(fd >= 0);
    EXPECT_EQ(gethostname(self, sizeof(self) - 1), 0);
    snprintf(first, sizeof(first), "\n%s\n192.0.2.1\n", self);
    snprintf(second, sizeof(second), "\n192.0.2.1\n%s\n", self);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        EXPECT(ftruncate(fd, 0) == 0 && pwrite(fd, CASES[i].map, strlen(CASES[i].map), 0) > 0);
        expect_told("4.1.6", options, own, CASES[i].has, CASES[i].has_not);
    }
    /* As many arguments as there can be. */
    EXPECT(pwrite(fd, "both localhost cores=0 device=1\n", 32, 0) == 32);
    expect_told("5.0.7", most, all, has, own);
    close(fd);
    unlink(path);
}

/* In a job of Slurm's, which from 23.11 on gives 4's srun a word of its own. */
static void launch_srun_is_told_not_to_kill_beside_dead_nodes(void)
{
    static const struct {
        const char *there, *on_death, *told;
    } CASES[] = {
        {"OTHER=",                                      "--on-death=replace", "told --overlap --no-kill .\n"},
        {"OMPI_MCA_plm_slurm_args=--external-launcher", "--on-death=replace",
         "told --overlap --no-kill .\n"                                                                     },
        {"OMPI_MCA_plm_slurm_args=--external-launcher", "--on-death=stop",
         "told --external-launcher .\n"                                                                     },
        {"OMPI_MCA_plm_slurm_args=--user",              "--on-death=replace", "told --user .\n"             },
    };
    own_mpirun mpirun;

    make_mpirun(&mpirun);
    write_mpirun(&mpirun, "[ $1 != --version ] || exec echo '(Open MPI) 4.1.6'\n"
                          "echo told $OMPI_MCA_plm_slurm_args .\n");
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        const char *argv[]        = {g_launch,          "-n", "1",    "--slurm",
                                     CASES[i].on_death, "--", "true", NULL};
        const char *environment[] = {mpirun.variable, "SLURM_JOB_ID=1", CASES[i].there, NULL};

        bt_command_run(&g_command, argv, environment, END_S);
        EXPECT_HAS(g_command.output, CASES[i].told);
    }
    remove_mpirun(&mpirun);
}

/* What a script that stands for mpirun does when it is told to stop: once when it has started
 * something, and not at all before. */
static void launch_mpirun_is_told_to_stop_once(void)
{
    static const struct {
        const char *script;
        bool        told;
    } CASES[] = {
        {"trap 'echo told; n=0' TERM; sleep 600 & echo up\n"
         "until [ \"$n\" = 5 ]; do sleep .1; n=${n:+$((n + 1))}; done\n", true },
        {"trap 'echo told; exit' TERM; exec 3<>$0.fifo; echo up; read word <&3\n", false},
    };
    own_mpirun  mpirun;
    char        fifo[96];
    const char *told;
    const char *argv[] = {g_launch, "-n1", "--", "true", NULL};

    make_mpirun(&mpirun);
    snprintf(fifo, sizeof(fifo), "%s.fifo", mpirun.path);
    EXPECT_EQ(mkfifo(fifo, 0600), 0);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        write_mpirun(&mpirun, "[ $1 != --version ] || exec echo '(Open MPI) 4.1.6'\n%s",
                     CASES[i].script);
        bt_command_start(&g_command, argv, mpirun.environment);
        EXPECT(bt_command_wait_for(&g_command, "up\n", START_S));
        kill(g_command.pid, SIGTERM);
        if (CASES[i].told) EXPECT(bt_command_wait_for(&g_command, "told\n", END_S));
        kill(g_command.pid, SIGTERM);
        EXPECT_EQ(bt_command_finish(&g_command, END_S), CASES[i].told ? 0 : 128 + SIGTERM);
        EXPECT(strstr(g_command.output, "mpirun has ended") == NULL);
        told = strstr(g_command.output, "told\n");
        EXPECT((told != NULL) == CASES[i].told);
        EXPECT(told == NULL || strstr(told + 1, "told\n") == NULL);
    }
    EXPECT_EQ(unlink(fifo), 0);
    remove_mpirun(&mpirun);
}

/* The launcher stands still for longer than mpirun has to end the job, as with its machine. */
static void launch_mpirun_is_not_late_while_the_launcher_stands_still(void)
{
    own_mpirun  mpirun;
    const char *argv[] = {g_launch, "-n1", "--", "true", NULL};
    char        fifo[96];
    int         fd;

    make_mpirun(&mpirun);
    snprintf(fifo, sizeof(fifo), "%s.fifo", mpirun.path);
    EXPECT_EQ(mkfifo(fifo, 0600), 0);
    write_mpirun(&mpirun, "[ $1 != --version ] || exec echo '(Open MPI) 4.1.6'\n"
                          "trap 'echo told; read word <\"$0.fifo\"; exit 0' TERM\n"
                          "sleep 600 & echo up; wait\n");
    bt_command_start(&g_command, argv, mpirun.environment);
    EXPECT(bt_command_wait_for(&g_command, "up\n", START_S));
    kill(g_command.pid, SIGTERM);
    EXPECT(bt_command_wait_for(&g_command, "told\n", END_S));
    kill(g_command.pid, SIGSTOP);
    sleep(7);
    kill(g_command.pid, SIGCONT);
    usleep(500000); /* in which it would kill it */
    fd = open(fifo, O_RDWR | O_CLOEXEC);
    EXPECT_EQ(write(fd, "go\n", 3), 3);
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 0);
    EXPECT(strstr(g_command.output, "killing it") == NULL);
    close(fd);
    EXPECT_EQ(unlink(fifo), 0);
    remove_mpirun(&mpirun);
}

/* Over several hosts, where the ranks are no children of mpirun's, which does not end by itself
 * once one is lost. */
static void launch_mpirun_over_hosts_ends_with_its_ranks(void)
{
#define ENDED "baton-launch: a rank has ended with "
    static const struct {
        const char *script;
        int         code;
        const char *told;
    } CASES[] = {
        {"echo '" ENDED "3'; echo '" ENDED "4'; echo '" ENDED "4'; sleep 600", 3,
         "3 of 3 ranks have failed"                                                                         },
        {"echo '" ENDED "0'; sleep 600",                                       0, ""                        },
        {"echo '" ENDED "3'; sleep 4",                                         3, "1 of 3 ranks have failed"},
    };
    own_mpirun  mpirun;
    const char *argv[] = {g_launch, "-n3", "--on-death=replace", "--host", "localhost", "--",
                          "true",   NULL};

    make_mpirun(&mpirun);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        write_mpirun(&mpirun, "[ $1 != --version ] || exec echo '(Open MPI) 4.1.6'\n%s\n",
                     CASES[i].script);
        EXPECT_EQ(bt_command_run(&g_command, argv, mpirun.environment, END_S), CASES[i].code);
        EXPECT_HAS(g_command.output, CASES[i].told);
        EXPECT(i == 0 || strstr(g_command.output, "3 of 3 ranks") == NULL);
    }
    remove_mpirun(&mpirun);
#undef ENDED
}

/* What ranks write and what is told of them are one stream, whose lines need not be whole. */
static void launch_words_without_a_newline_are_passed_on(void)
{
#define ENDED "baton-launch: a rank has ended with "
    static const struct {
        const char *prints; /* mpirun, in printf(1)'s words */
        int         code;
        const char *has[2];
    } CASES[] = {
        {"'first words " ENDED "3\\nlast words'",              3,   {"first words ", "last words"}        },
        {"'" ENDED "another rank says\\n137\\n'",              1,   {ENDED "another rank says\n", "137\n"}},
        {"'" ENDED "0 says another\\n" ENDED "137\\n'",        137, {ENDED "0 says another\n", ""}        },
        {"'" ENDED ENDED "137\\n'",                            137, {ENDED, ""}                           },
 /* Around the end of the launcher's buffer. */
        {"'%04090d" ENDED "3\\nlast words' 1",                 3,   {"0000", "01last words"}              },
        {"'%04058d" ENDED "137\\nlast words' 1",               137, {"0000", "01last words"}              },
        {"'" ENDED "3\\n" ENDED "0\\n'",                       0,   {"", ""}                              },
        {"'" ENDED "\\n" ENDED "3\\n'",                        3,   {ENDED "\n", ""}                      },
 /* A line that comes in parts, and a shorter one over it. */
        {"'words " ENDED "'; sleep .25; printf '137\\n'",      137, {"words ", ""}                        },
        {"'\\n%090d\\n\\n' 1; sleep .25; printf '" ENDED "3'", 3,   {"0001\n\n", ""}                      },
    };
    own_mpirun  mpirun;
    const char *zeros;
    const char *argv[] = {g_launch, "-n",   "2", "--on-death=replace", "--host", "localhost",
                          "--",     "true", NULL};

    make_mpirun(&mpirun);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        write_mpirun(&mpirun, "printf %s\n", CASES[i].prints);
        EXPECT_EQ(bt_command_run(&g_command, argv, mpirun.environment, END_S), CASES[i].code);
        EXPECT_HAS(g_command.output, CASES[i].has[0]);
        EXPECT_HAS(g_command.output, CASES[i].has[1]);
        zeros = strstr(g_command.output, "0000");
        EXPECT(zeros == NULL || strstr(zeros + strspn(zeros, "0"), "0000") == NULL); /* once */
    }
    remove_mpirun(&mpirun);
#undef ENDED
}

/* On this machine each parent writes how its rank ended, and the launcher reads what is new.  What
 * mpirun makes of it, as 5 does of a rank that died, does not matter. */
static void launch_endings_are_counted_once(void)
{
    own_mpirun  mpirun;
    const char *argv[] = {g_launch, "-n2", "--on-death=replace", "--", "true", NULL};
    const char *told;

    make_mpirun(&mpirun);
    write_mpirun(&mpirun, "[ $1 != --version ] || exec echo '(Open MPI) 4.1.6'\n"
                          "printf 13 >> $BT_RANK_ENDINGS; sleep .25\n"
                          "printf '7\\n0\\n' >> $BT_RANK_ENDINGS; sleep .35; exit 137\n");
    EXPECT_EQ(bt_command_run(&g_command, argv, mpirun.environment, END_S), 0);
    EXPECT_HAS(g_command.output, "1 of 2 ranks have failed");
    told = strstr(g_command.output, "1 of 2 ranks");
    EXPECT(told != NULL && strstr(told + 2, " of 2 ranks") == NULL);
    remove_mpirun(&mpirun);
}

static const bt_test TESTS[] = {
    BT_TEST(launch_mpirun_that_starts_nothing_is_told),
    BT_TEST(launch_mpirun_that_other_hosts_cannot_start_is_told),
    BT_TEST(launch_mpirun_is_asked_what_it_is),
    BT_TEST(launch_users_words_reach_5),
    BT_TEST(launch_mpirun_is_told_what_the_job_needs),
    BT_TEST(launch_mpi_goes_by_loopback_where_there_is_nothing_else),
    BT_TEST(launch_mpirun_is_told_the_rank_map),
    BT_TEST(launch_srun_is_told_not_to_kill_beside_dead_nodes),
    BT_TEST(launch_mpirun_is_told_to_stop_once),
    BT_TEST(launch_mpirun_is_not_late_while_the_launcher_stands_still),
    BT_TEST(launch_mpirun_over_hosts_ends_with_its_ranks),
    BT_TEST(launch_words_without_a_newline_are_passed_on),
    BT_TEST(launch_endings_are_counted_once),
};

/* usage: test_without_mpirun BATON_LAUNCH [test] */
int main(int argc, char **argv)
{
    if (!launch_tests_begin(argc, argv)) return EXIT_FAILURE;
    return BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
}
