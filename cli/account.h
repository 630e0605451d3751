/* cli/account.h - what each rank of a cell says at its end that it has done, as a user reads it.
 *
 * A worker writes one line to its log, see bt_worker_log_account() in worker/worker.h. */
#ifndef BT_CLI_ACCOUNT_H
#define BT_CLI_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/cell_options.h"

typedef struct {
    bool               known;
    unsigned long long steps, prompt_tokens, generated_tokens, pages, bytes;
    unsigned long long drafted, right; /* tokens of drafts, which generated_tokens has too */
} bt_account;

/* Any line of a rank; when it is an account, accounts[its rank] is set. */
void bt_account_read(const char *line, uint32_t n_ranks, bt_account *accounts);
/* One line per rank that has given one, to stderr; dropped where nobody reads it. */
void bt_account_print(const bt_cell_options *cell, const bt_account *accounts);

#endif
