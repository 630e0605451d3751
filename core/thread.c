#include "core/thread.h"

#include <signal.h>

int bt_thread_start(pthread_t *thread_out, void *(*run)(void *ctx), void *ctx)
{
    sigset_t all, before;
    int      code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(thread_out, NULL, run, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}
