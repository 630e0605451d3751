/* coordinator/avoided.c - pairs of a prefill and a decode rank whose hand-offs stood still.
 *
 * Both may be well, and the network between them not.  Nothing is placed on the two together for a
 * while, or until no other pair is left; pairs are few, and looked through one by one. */
#include <string.h>

#include "coordinator/relay_state.h"
#include "core/clock.h"

enum { AVOID_S = 600 };

bool bt_relay_is_avoided(const bt_relay *relay, uint32_t prefill, int decode)
{
    for (uint32_t i = 0; i < relay->n_avoided; i++)
        if (relay->avoided[i].prefill == prefill && (int)relay->avoided[i].decode == decode)
            return true;
    return false;
}

uint32_t bt_relay_n_avoided(const bt_relay *relay, uint32_t rank)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < relay->n_avoided; i++) {
        const bt_avoided_pair *p = &relay->avoided[i];

        n += (p->decode == rank && bt_relay_prefills(relay, p->prefill)) ||
             (p->prefill == rank && bt_relay_decodes(relay, p->decode));
    }
    return n;
}

static void drop(bt_relay *r, uint32_t i)
{
    r->n_avoided--;
    memmove(&r->avoided[i], &r->avoided[i + 1], (r->n_avoided - i) * sizeof(r->avoided[0]));
}

void bt_relay_look_at_avoided(bt_relay *relay, uint64_t now_ns)
{
    uint32_t taken[2], n_cut_off = 0;

    if (relay->n_avoided == 0) return; /* no rank is cut off then */
    while (relay->n_avoided > 0 && now_ns >= relay->avoided[0].until_ns)
        drop(relay, 0);
    bt_relay_count_seats(relay, taken);
    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++) {
        bool     decodes = bt_relay_decodes(relay, i);
        uint32_t n       = bt_relay_n_avoided(relay, i);

        relay->ranks[i].cut_off =
            n > 0 && n == taken[decodes ? BT_SEATED_PREFILL : BT_SEATED_DECODE];
        n_cut_off += decodes && relay->ranks[i].cut_off;
    }
    if (n_cut_off == 0 || n_cut_off < taken[BT_SEATED_DECODE]) return;
    relay->n_avoided = 0;
    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++)
        relay->ranks[i].cut_off = false;
}

bool bt_relay_avoid(bt_relay *relay, const bt_relay_request *q, uint64_t now_ns)
{
    bt_avoided_pair pair = {q->prefill_rank, q->decode_rank, now_ns + AVOID_S * BT_NS_PER_S};

    for (uint32_t i = 0; i < relay->n_avoided; i++)
        if (relay->avoided[i].prefill == pair.prefill && relay->avoided[i].decode == pair.decode)
            drop(relay, i);
    if (relay->n_avoided == BT_AVOIDED_PAIRS) drop(relay, 0);
    relay->avoided[relay->n_avoided++] = pair;
    bt_relay_look_at_avoided(relay, now_ns);
    if (relay->n_avoided > 0)
        BT_WARN("a hand-off from rank %u to rank %u stood still: none goes there for %d s",
                pair.prefill, pair.decode, (int)AVOID_S);
    return relay->n_avoided > 0 && bt_relay_could_ever_hold(relay, q);
}
