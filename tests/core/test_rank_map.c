/* Rank maps: what they mean, and what is wrong with them, by line. */
#include "core/rank_map.h"

#include <unistd.h>

#include "tests/support/sweep.h"
#include "tests/support/test.h"

#define PATH "ranks.map" /* in a folder of its own */

static bt_status read_bytes(const char *text, size_t n, bt_rank_map *map)
{
    FILE *f = fopen(PATH, "we");

    EXPECT(f != NULL);
    if (f == NULL) return BT_ERR_IO;
    EXPECT_EQ(fwrite(text, 1, n, f), n);
    fclose(f);
    return bt_rank_map_read(PATH, map);
}

static bt_status read_text(const char *text, bt_rank_map *map)
{
    return read_bytes(text, strlen(text), map);
}

static void map_lists_end_where_they_must(void)
{
    uint32_t numbers[BT_RANK_LIST_MAX], n = 0;
    char     text[64];

    EXPECT(bt_rank_list_parse("0-2,7", 8, numbers, &n) && n == 4 && numbers[3] == 7);
    EXPECT(!bt_rank_list_parse("8", 8, numbers, &n));
    EXPECT(!bt_rank_list_parse("7-8", 8, numbers, &n));
    snprintf(text, sizeof(text), "1-%d", BT_RANK_LIST_MAX);
    EXPECT(bt_rank_list_parse(text, 8192, numbers, &n) && n == BT_RANK_LIST_MAX);
    snprintf(text, sizeof(text), "0-%d", BT_RANK_LIST_MAX);
    EXPECT(!bt_rank_list_parse(text, 8192, numbers, &n));
}

static void map_lines_become_ranks_by_role(void)
{
    bt_rank_map map = {0};

    EXPECT_EQ(read_text("# a cell\n"
                        "decode n2 ranks=2 cores=0-3 device=1,0\n"
                        "  prefill\tn1   # the first\n"
                        "\n"
                        "spare n3 cores=7\n"
                        "prefill n2",
                        &map),
              BT_OK);
    EXPECT_EQ(map.n_ranks, 5);
    EXPECT_EQ(map.n_prefill, 2);
    EXPECT_EQ(map.n_decode, 2);
    EXPECT_EQ(map.n_both, 0);
    EXPECT_EQ(map.n_spares, 1);
    if (map.n_ranks == 5) {
        EXPECT(strcmp(map.ranks[0].host, "n1") == 0);
        EXPECT(strcmp(map.ranks[1].host, "n2") == 0);
        EXPECT_EQ(map.ranks[1].kind, BT_RANK_PREFILL);
        EXPECT(strcmp(map.ranks[1].cores, "") == 0);
        EXPECT(strcmp(map.ranks[2].cores, "0,1") == 0);
        EXPECT(strcmp(map.ranks[2].devices, "1") == 0);
        EXPECT(strcmp(map.ranks[3].cores, "2,3") == 0);
        EXPECT(strcmp(map.ranks[3].devices, "0") == 0);
        EXPECT_EQ(map.ranks[4].kind, BT_RANK_SPARE);
        EXPECT(strcmp(map.ranks[4].cores, "7") == 0);
    }
    bt_rank_map_fini(&map);

    EXPECT_EQ(
        read_text("both n1 ranks=2 device=MIG-5c8e,GPU-77/1/0\nboth n2 device=MIG-5c8e", &map),
        BT_OK);
    EXPECT_EQ(map.n_both, 3);
    if (map.n_ranks == 3) {
        EXPECT(strcmp(map.ranks[0].devices, "MIG-5c8e") == 0);
        EXPECT(strcmp(map.ranks[1].devices, "GPU-77/1/0") == 0);
        EXPECT(strcmp(map.ranks[2].devices, "MIG-5c8e") == 0);
    }
    bt_rank_map_fini(&map);

    EXPECT_EQ(read_text("both n1 ranks=2 device=MIG-5c8e device=0,1\n", &map), BT_OK);
    EXPECT(map.n_ranks == 2 && strcmp(map.ranks[1].devices, "1") == 0); /* the last one counts */
    bt_rank_map_fini(&map);

    EXPECT_EQ(read_text("both n1 ranks=3\n", &map), BT_OK);
    EXPECT_EQ(map.n_both, 3);
    EXPECT_EQ(map.n_prefill + map.n_decode + map.n_spares, 0);
    bt_rank_map_fini(&map);
}

static void map_errors_name_the_line(void)
{
    static const struct {
        const char *text, *says;
    } CASES[] = {
        {"",                                                     "needs a prefill and a decode rank"                         },
        {"prefill n1\n",                                         "needs a prefill and a decode rank"                         },
        {"prefill n1\nmaster n2\n",                              ":2: \"master\" is not a role"                              },
        {"prefill n1\nboth n2\n",                                ":2: in a cell all ranks"                                   },
        {"prefill\ndecode n1\n",                                 ":1: expected ROLE HOST"                                    },
        {"prefill ranks=2\ndecode n1\n",                         ":1: expected ROLE HOST"                                    },
        {"prefill n1 ranks=0\n",                                 ":1: \"ranks=0\""                                           },
        {"prefill n1 ranks=5000\n",                              ":1: \"ranks=5000\""                                        },
        {"prefill n1 ranks=-1\n",                                ":1: \"ranks=-1\""                                          },
        {"prefill n1 cores=3-1\n",                               ":1: \"cores=3-1\""                                         },
        {"prefill n1 cores=1,1\n",                               ":1: \"cores=1,1\""                                         },
        {"prefill n1 cores=99999\n",                             ":1: \"cores=99999\""                                       },
        {"prefill n1 cores=0-4095\n",                            ":1: \"cores=0-4095\""                                      },
        {"prefill n1 cores=1024\n",                              "different cores below 1024, like 0-3,8"                    },
        {"prefill n1 cores=\n",                                  ":1: \"cores=\""                                            },
        {"prefill n1 ranks=2 cores=0-2\ndecode n1\n",            "cannot be dealt out evenly"                                },
        {"prefill n1 device=1,1\n",                              ":1: \"device=1,1\": expected at most 256 different devices"},
        {"prefill n1 device=MIG-a,MIG-a\n",                      ":1: \"device=MIG-a,MIG-a\": expected at most 256"          },
        {"prefill n1 device=MIG-a,0\n",                          "or their UUIDs"                                            },
        {"prefill n1 device=MIG-\n",                             "or their UUIDs"                                            },
        {"prefill n1 device=MIG-a;b\n",                          "or their UUIDs"                                            },
        {"prefill n1 device=MIG-a,\n",                           "or their UUIDs"                                            },
        {"prefill n1 ranks=2 device=MIG-a\ndecode n1\n",         "cannot be dealt out evenly"                                },
        {"prefill n1 colour=red\n",                              ":1: \"colour=red\""                                        },
        {"prefill n1 ranks=1 ranks=1 ranks=1 ranks=1 ranks=1\n", "too many words"                                            },
        {"prefill n1 ranks=4000\ndecode n1 ranks=97\n",          ":2: more than 4096 ranks"                                  },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bt_rank_map map = {0};

        EXPECT(read_text(CASES[i].text, &map) == BT_ERR_INVALID_ARG);
        EXPECT_HAS(bt_error_text(), CASES[i].says);
        bt_rank_map_fini(&map);
    }
    bt_rank_map map = {0};
    char        many[16 * BT_RANK_LIST_MAX];
    size_t      at = (size_t)snprintf(many, sizeof(many), "both n1 device=");

    for (int i = 0; i < BT_RANK_LIST_MAX; i++)
        at += (size_t)snprintf(many + at, sizeof(many) - at, "%sMIG-%d", i > 0 ? "," : "", i);
    EXPECT_EQ(read_text(many, &map), BT_OK);
    bt_rank_map_fini(&map);
    strcpy(many + at, ",MIG-x"); /* one more than a line may name */
    EXPECT_EQ(read_text(many, &map), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "expected at most 256 different devices");
    EXPECT_EQ(bt_rank_map_read("nowhere.map", &map), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "nowhere.map");
}

static void map_takes_visible_characters_only(void)
{
    static const struct {
        const char *text, *says;
    } CASES[] = {
        {"prefill n1\nboth n\0012\n",         ":2:7: byte 0x01, expected visible ASCII"},
        {"prefill n\x7f\n",                   ":1:10: byte 0x7f"                       },
        {"prefill n\xc3\xbc\n",               ":1:10: byte 0xc3"                       },
        {"prefill n1\fdecode\n",              ":1:11: byte 0x0c"                       },
        {"\xef\xbb\xbf"
         "prefill n1\n",             ":1:1: byte 0xef"                        },
        {"prefill n1 device=MIG-\xff # n1\n", ":1:23: byte 0xff"                       },
    };
    static const char WITH_0[] = "both n1\0 ranks=3\n";
    bt_rank_map       map      = {0};

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        EXPECT(read_text(CASES[i].text, &map) == BT_ERR_INVALID_ARG);
        EXPECT_HAS(bt_error_text(), CASES[i].says);
    }
    EXPECT_EQ(read_bytes(WITH_0, sizeof(WITH_0) - 1, &map), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), ":1:8: byte 0x00");
    EXPECT_EQ(read_text("both\tn1 # f\xc3\xbcr \xff\r\n", &map), BT_OK);
    EXPECT(map.n_ranks == 1 && strcmp(map.ranks[0].host, "n1") == 0);
    bt_rank_map_fini(&map);
}

static void map_memory_that_fails_leaves_nothing(void)
{
    static const char TEXT[] = "both n1 ranks=3 cores=0-5\nboth n1 device=MIG-a";
    bt_rank_map       map    = {0};

    EXPECT(BT_SWEEP(read_text(TEXT, &map), bt_rank_map_fini(&map)) > 3);
}

static const bt_test TESTS[] = {
    BT_TEST(map_lists_end_where_they_must),
    BT_TEST(map_lines_become_ranks_by_role),
    BT_TEST(map_errors_name_the_line),
    BT_TEST(map_takes_visible_characters_only),
    BT_TEST(map_memory_that_fails_leaves_nothing),
};

int main(int argc, char **argv)
{
    char folder[] = "/tmp/baton-map-XXXXXX";
    int  code;

    if (mkdtemp(folder) == NULL || chdir(folder) != 0) return EXIT_FAILURE;
    code = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    unlink(PATH);
    if (chdir("/") == 0) rmdir(folder);
    return code;
}
