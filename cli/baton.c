/* baton - `baton VERB ...` runs the program baton-VERB that lies beside this one. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "core/file.h"

static const struct {
    const char *verb, *text;
} VERBS[] = {
    {"run",         "start a cell and serve: coordinator and ranks in one command"   },
    {"chat",        "talk with a running cell"                                       },
    {"generate",    "send one prompt to a running cell"                              },
    {"bench",       "put load on a running cell and measure its answers"             },
    {"logits",      "compute the logits of given tokens, by the ranks that serve"    },
    {"tokenize",    "turn text into token ids, as the model does"                    },
    {"check",       "check every node of a cell before anything is started there"    },
    {"inspect",     "show what a model is, how large it is, and what fits here"      },
    {"convert",     "make a checkpoint from a GGUF file"                             },
    {"synth",       "make a checkpoint of a known model's shape, with random weights"},
    {"profile",     "measure what the variants of attention cost on this machine"    },
    {"coordinator", "start the coordinator of a cell alone"                          },
    {"worker",      "be one rank of a cell (started by launch)"                      },
    {"launch",      "start the ranks of a cell under mpirun"                         },
};

static bool exists(const char *verb, char path_out[PATH_MAX])
{
    char name[NAME_MAX];

    return strchr(verb, '/') == NULL &&
           snprintf(name, sizeof(name), "baton-%s", verb) < (int)sizeof(name) &&
           bt_path_beside(name, path_out) && access(path_out, X_OK) == 0;
}

static void help(FILE *to)
{
    char path[PATH_MAX];

    fputs(
        "Usage: baton VERB [OPTION...]\n"
        "Serves DeepSeek-class models: prompts on one group of ranks, generation on\nanother.\n\n",
        to);
    for (size_t i = 0; i < sizeof(VERBS) / sizeof(VERBS[0]); i++) {
        if (exists(VERBS[i].verb, path)) fprintf(to, "  %-12s %s\n", VERBS[i].verb, VERBS[i].text);
    }
    fputs("\n`baton VERB --help` says more, `baton --version` which version this is.\n"
          "To start with:\n"
          "  baton inspect models/demo\n"
          "  baton run --model models/demo --prefill 2 --decode 2 --port 8000\n"
          "  baton chat --address 127.0.0.1:8000\n",
          to);
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : NULL;
    char        path[PATH_MAX], name[64];

    if (verb == NULL) {
        help(stderr);
        return EX_USAGE;
    }
    if (strcmp(verb, "--version") == 0 || strcmp(verb, "-V") == 0) {
        puts("baton " BT_VERSION);
        return EXIT_SUCCESS;
    }
    if (strcmp(verb, "help") == 0 && argc > 2) { /* baton help run = baton run --help */
        argv[1] = argv[2];
        argv[2] = (char *)"--help";
        argv[3] = NULL;
        verb    = argv[1];
    } else if (strcmp(verb, "help") == 0 || strcmp(verb, "--help") == 0 ||
               strcmp(verb, "-?") == 0 || strcmp(verb, "-h") == 0) {
        help(stdout);
        return EXIT_SUCCESS;
    }
    if (!bt_own_path(path)) {
        fputs("baton: where this program lies is not known: is /proc mounted?\n", stderr);
        return EXIT_FAILURE;
    }
    if (!exists(verb, path)) {
        fprintf(stderr, "baton: there is no verb \"%s\"\n\n", verb);
        help(stderr);
        return EX_USAGE;
    }
    snprintf(name, sizeof(name), "baton %s", verb); /* what --help and usage errors call it */
    argv[1] = name;
    execv(path, argv + 1);
    fprintf(stderr, "baton: %s: %s\n", path, strerror(errno));
    return EXIT_FAILURE;
}
