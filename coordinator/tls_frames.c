/* SSL_read() of this program, which gRPC calls: the bound of header_frames.h for connections with
 * TLS, of which recvmsg() sees ciphertext alone.  SSL_free() tells that one is over.  Of OpenSSL
 * these two names are all that is needed.  Any thread may call them. */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "coordinator/header_frames.h"
#include "coordinator/table.h"
#include "core/alloc.h"

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static bt_table        g_connections; /* bt_header_frames, owned, by their SSL's address */

/* false where memory is short, too: what is not looked at is not read. */
static bool take(const void *ssl, const void *bytes, size_t n)
{
    uint64_t          key = (uintptr_t)ssl;
    const char       *why = "cannot be looked at, since memory is short";
    bt_header_frames *h;

    pthread_mutex_lock(&g_lock);
    h = bt_table_get(&g_connections, key);
    if (h == NULL) {
        h = bt_calloc(1, sizeof(*h));
        if (h != NULL && bt_table_put(&g_connections, key, h) != BT_OK) {
            bt_free(h);
            h = NULL;
        }
    }
    if (h != NULL) why = bt_header_frames_refuse(h, bytes, n);
    pthread_mutex_unlock(&g_lock);
    if (why != NULL) BT_WARN("a client with TLS %s: its connection is closed", why);
    return why == NULL;
}

static void forget(const void *ssl)
{
    bt_header_frames *h;

    pthread_mutex_lock(&g_lock);
    h = bt_table_get(&g_connections, (uintptr_t)ssl);
    if (h != NULL) bt_header_frames_end(h);
    bt_free(h);
    bt_table_remove(&g_connections, (uintptr_t)ssl);
    pthread_mutex_unlock(&g_lock);
}

/* OpenSSL's own. */
static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static int (*g_read)(void *, void *, int);
static void (*g_free)(void *);

static void find_openssl(void)
{
    void *read_fn = dlsym(RTLD_NEXT, "SSL_read"), *free_fn = dlsym(RTLD_NEXT, "SSL_free");

    BT_ASSERT(read_fn != NULL && free_fn != NULL);
    memcpy(&g_read, &read_fn, sizeof(g_read));
    memcpy(&g_free, &free_fn, sizeof(g_free));
}

/* By their names for the linker, as in accept.c. */
__attribute__((visibility("default"))) int  bt_ssl_read(void *ssl, void *bytes,
                                                        int n) __asm__("SSL_read");
__attribute__((visibility("default"))) void bt_ssl_free(void *ssl) __asm__("SSL_free");

int bt_ssl_read(void *ssl, void *bytes, int n)
{
    pthread_once(&g_once, find_openssl);
    n = g_read(ssl, bytes, n);
    return n <= 0 || take(ssl, bytes, (size_t)n) ? n : -1; /* gRPC closes it */
}

void bt_ssl_free(void *ssl)
{
    forget(ssl);
    pthread_once(&g_once, find_openssl);
    g_free(ssl);
}
