/* tests/support/one_thread.c - holds a test to what its label says (bt_test, ONE_THREAD).
 *
 * The linker sends every call of pthread_create from our own code here. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg)
{
    (void)thread;
    (void)attr;
    (void)fn;
    (void)arg;
    fprintf(stderr, "this test starts a thread: take ONE_THREAD from it in CMakeLists.txt, so that "
                    "ThreadSanitizer sees it\n");
    exit(EXIT_FAILURE);
}
