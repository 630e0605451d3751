/* The hand-off's tests, rows on the device and by NCCL. */
#define SITE_NCCL
#include "tests/parallel/test_handoff.c"
