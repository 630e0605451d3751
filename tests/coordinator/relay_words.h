/* tests/coordinator/relay_words.h - what ranks say to a relay in tests, in the epoch that it begins
 * in. */
#ifndef BT_TESTS_COORDINATOR_RELAY_WORDS_H
#define BT_TESTS_COORDINATOR_RELAY_WORDS_H

#include <string.h>

#include "core/alloc.h"
#include "proto/control_msg.h"

enum { EPOCH = 6 };

/* The ranks' own memory lasts where a test has the relay's end. */
static inline void *words_calloc(size_t n, size_t size)
{
    void *p = bt_calloc(n, size);

    return p != NULL ? p : bt_calloc(n, size);
}

static inline bt_up sim_ticket(uint64_t number, uint32_t n_pages)
{
    bt_up m = {.kind = BT_UP_TICKET};

    m.u.ticket.request = number;
    m.u.ticket.epoch   = EPOCH;
    m.u.ticket.refused = n_pages == 0;
    m.u.ticket.n_pages = n_pages;
    if (n_pages > 0) m.u.ticket.pages = words_calloc(n_pages, sizeof(bt_page_ref));
    for (uint32_t i = 0; i < n_pages; i++)
        m.u.ticket.pages[i].id = i;
    return m;
}

static inline bt_up sim_tokens(uint64_t number, uint32_t position, uint32_t id, bt_finish finish)
{
    bt_up m = {.kind = BT_UP_TOKENS};

    m.u.tokens.n         = 1;
    m.u.tokens.tokens    = words_calloc(1, sizeof(bt_token));
    m.u.tokens.tokens[0] = (bt_token){
        .request = number, .position = position, .epoch = EPOCH, .id = id, .finish = finish};
    return m;
}

static inline bt_up sim_choice_token(uint64_t number, uint32_t choice, uint32_t position,
                                     uint32_t id, bt_finish finish)
{
    bt_up m = sim_tokens(number, position, id, finish);

    m.u.tokens.tokens[0].choice = choice;
    return m;
}

static inline bt_up sim_released(uint64_t number)
{
    return (bt_up){
        .kind = BT_UP_RELEASED, .u.released = {number, EPOCH}
    };
}

static inline bt_up sim_failed(uint64_t number, uint32_t code)
{
    bt_up m = {.kind = BT_UP_FAILED};

    m.u.failed.request = number;
    m.u.failed.epoch   = EPOCH;
    m.u.failed.code    = code;
    m.u.failed.message = words_calloc(7, 1);
    memcpy(m.u.failed.message, "broken", 7);
    return m;
}

static inline bt_up sim_retracted(uint64_t number, uint32_t epoch)
{
    return (bt_up){
        .kind = BT_UP_RETRACTED, .u.retracted = {number, epoch}
    };
}

#endif
