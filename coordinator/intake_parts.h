/* coordinator/intake_parts.h - inside the intake only: what its files share. */
#ifndef BT_COORDINATOR_INTAKE_PARTS_H
#define BT_COORDINATOR_INTAKE_PARTS_H

#include <stdio.h>

#include "coordinator/intake.h"

#define REFUSE_UNLESS(cond, ...)                            \
    do {                                                    \
        if (!(cond)) {                                      \
            snprintf(refusal, BT_INTAKE_TEXT, __VA_ARGS__); \
            return BT_ERR_INVALID_ARG;                      \
        }                                                   \
    } while (0)
/* The same where something must be unwound. */
#define REFUSE_UNLESS_OUT(cond, ...)                        \
    do {                                                    \
        if (!(cond)) {                                      \
            snprintf(refusal, BT_INTAKE_TEXT, __VA_ARGS__); \
            st = BT_ERR_INVALID_ARG;                        \
            goto out;                                       \
        }                                                   \
    } while (0)

/* Everything in SamplingParams but max_tokens.  What it took so far is owned by sampling and answer
 * also when it refuses. */
bt_status bt_intake_sampling(const Vllm__Grpc__Engine__SamplingParams *p,
                             const bt_intake_limits *limits, bt_sampling *sampling,
                             bt_intake_answer *answer, char *refusal);

#endif
