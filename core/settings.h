/* core/settings.h - one program's options from four places: flag > environment > file > default.
 *
 * Every long option NAME of a program may also stand in its configuration file (--config FILE) as
 * "name = value", and in the environment as BATON_NAME, capitals and '_' for '-'.  Options without
 * an argument take true and false there.  This module finds those, and makes one command line of
 * them all, weakest first, for argp to parse: the last value of an option counts.
 *
 * A file: one setting a line, '#' begins a comment, a value may stand in double quotes.
 *
 * Threads: main's, before any other.  Memory: the strings live until destroy. */
#ifndef BT_CORE_SETTINGS_H
#define BT_CORE_SETTINGS_H

#include <argp.h>

#include "core/status.h"

typedef struct bt_settings bt_settings;

/* Two options that exclude each other: the one that is set in the stronger place stays. */
typedef struct {
    const char *a, *b;
} bt_setting_conflict;

/* An option that has no effect with, or without, another one of this value.  As a flag it is an
 * error; a file and an environment may be shared with runs where it has one. */
typedef enum { BT_WITHOUT, BT_WITH } bt_setting_when;
typedef struct {
    const char     *name;
    bt_setting_when when;
    const char     *other, *value; /* value NULL: any.  other NULL: name never has an effect */
    const char     *more;          /* after "--name has no effect ...: leave it out, " */
} bt_setting_idle;

typedef struct {
    const struct argp         *parser;
    const bt_setting_conflict *conflicts; /* up to a NULL name; may be NULL */
    const bt_setting_idle     *idle;      /* the same */
} bt_settings_spec;

/* The option that every parser's table needs for this: key BT_OPT_CONFIG, nothing to do in its
 * parse function. */
enum { BT_OPT_CONFIG = 0x7f00 };
#define BT_CONFIG_OPTION(group)                                                                 \
    {                                                                                           \
        "config", BT_OPT_CONFIG, "FILE", 0,                                                     \
            "Settings as lines \"name = value\"; a flag or BATON_NAME in the environment wins", \
            group                                                                               \
    }

/* Of each such program's --help. */
#define BT_CONFIG_TEXT                                                                       \
    "Every option can also be set in the file of --config, as \"name = value\", and in the " \
    "environment, as BATON_NAME with '_' for '-'. A flag wins over the environment, the "    \
    "environment over the file, the file over the default."

/* INVALID_ARG or IO names file and line, or the variable, or the flag that has no effect.  The log
 * warns of variables whose names are nearly an option's. */
bt_status bt_settings_gather(const bt_settings_spec *spec, int argc, char **argv,
                             bt_settings **settings_out);
void      bt_settings_destroy(bt_settings *settings);
/* For a program that takes flags only: INVALID_ARG names one that has no effect. */
bt_status bt_settings_check_flags(const bt_settings_spec *spec, int argc, char **argv);
/* What argp is to parse; owned by the settings. */
int    bt_settings_argc(const bt_settings *settings);
char **bt_settings_argv(const bt_settings *settings);
/* To the log: every setting that somebody made, with its place, then what holds by default, as
 * BT_OPTION_DEFAULT() says. */
void bt_settings_log(const bt_settings *settings);
/* Takes this program's variables out of the environment, so that children which know some of the
 * names get them only as flags; and those that were warned of as misspelt. */
void bt_settings_clear_environment(const bt_settings *settings);

#endif
