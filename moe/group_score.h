/* moe/group_score.h - how good a group of experts is: of the gate, on the host and in its kernel.
 */
#ifndef BT_MOE_GROUP_SCORE_H
#define BT_MOE_GROUP_SCORE_H

#include <math.h>

#include "device/host_device.h"
#include "moe/gate.h"

/* choice: [size] what the selection compares.  DeepSeek-V2: a group is as good as its best expert;
 * V3: as the sum of its two best. */
BT_HOST_DEVICE float bt_gate_group_score(bt_gate_kind kind, uint32_t size, const float *choice)
{
    float first = -INFINITY, second = -INFINITY, sum;

    for (uint32_t i = 0; i < size; i++) {
        if (choice[i] > first) {
            second = first;
            first  = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    if (kind != BT_GATE_SIGMOID_BIAS || size == 1) return first;
    sum = first + second;
    return sum == sum ? sum : -INFINITY; /* of inf and -inf: searches could not order it */
}

#endif
