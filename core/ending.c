#include "core/ending.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

static void tell_cause(int sig, char *buf, size_t capacity)
{
    struct statvfs shm;

    buf[0] = '\0';
    if (sig == SIGKILL)
        snprintf(buf, capacity, "; if nobody did that, memory had run out: see dmesg");
    if (sig == SIGBUS && statvfs("/dev/shm", &shm) == 0)
        snprintf(
            buf, capacity,
            "; /dev/shm has %llu MiB left; if that is enough, a file was cut while it was read",
            (unsigned long long)shm.f_bavail * shm.f_frsize >> 20);
}

const char *bt_ending_by_signal(int sig, bool ours, char *buf, size_t capacity)
{
    char cause[96] = "";

    if (!ours) tell_cause(sig, cause, sizeof(cause));
    snprintf(buf, capacity, "was ended by signal %d (%s)%s", sig, strsignal(sig), cause);
    return buf;
}
