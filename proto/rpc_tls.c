/* TLS files of servers and clients. */
#include <errno.h>
#include <grpc/grpc_security.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/parse.h"
#include "proto/rpc.h"

enum { PEM_MAX = 1 << 20 };

/* PEM texts, owned. */
typedef struct {
    char *cert, *key; /* a chain and its private key */
    char *client_ca;  /* NULL: clients need no certificate */
} pem_texts;

static bt_status read_pem(const char *path, const char *marker, char **text_out)
{
    bt_status   st   = BT_OK;
    char       *text = bt_calloc(1, PEM_MAX + 1);
    const char *why;
    FILE       *f = bt_open_regular(path, &why);
    size_t      n = 0;

    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "the file %s", path);
    BT_REQUIRE(f != NULL, BT_ERR_IO, "%s: %s: expected a PEM file with a %.*s", path, why,
               (int)strcspn(marker, "-"), marker);
    n = fread(text, 1, PEM_MAX + 1, f);
    BT_REQUIRE(ferror(f) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    BT_REQUIRE(n <= PEM_MAX, BT_ERR_IO, "%s: over %d bytes, expected a PEM file", path, PEM_MAX);
    text[n] = 0;
    BT_REQUIRE(
        strlen(text) == n && strstr(text, "-----BEGIN ") != NULL && strstr(text, marker) != NULL,
        BT_ERR_IO, "%s: expected a PEM file with a %.*s", path, (int)strcspn(marker, "-"), marker);
    *text_out = text;
    text      = NULL; /* handed over */
out:
    if (f != NULL) fclose(f);
    if (text != NULL) explicit_bzero(text, n);
    bt_free(text);
    return st;
}

/* Overwrites the key first. */
static void free_pems(pem_texts *tls)
{
    if (tls->key != NULL) explicit_bzero(tls->key, strlen(tls->key));
    bt_free(tls->cert);
    bt_free(tls->key);
    bt_free(tls->client_ca);
    *tls = (pem_texts){0};
}

/* client_ca may be NULL. */
static bt_status read_pems(const char *cert, const char *key, const char *client_ca,
                           pem_texts *tls_out)
{
    bt_status st  = BT_OK;
    pem_texts tls = {0};

    BT_TRY(read_pem(cert, "CERTIFICATE-----", &tls.cert));
    BT_TRY(read_pem(key, "PRIVATE KEY-----", &tls.key));
    BT_REQUIRE(strstr(tls.key, "ENCRYPTED") == NULL, BT_ERR_IO,
               "%s: the key has a passphrase, which nobody here can type: expected one without "
               "(openssl pkey -in FILE -out FILE)",
               key);
    if (client_ca != NULL) BT_TRY(read_pem(client_ca, "CERTIFICATE-----", &tls.client_ca));
    *tls_out = tls;
    tls      = (pem_texts){0}; /* handed over */
out:
    free_pems(&tls);
    return st;
}

/* ---- a server's files, which may change */

enum { N_FILES = 3, LOOK_S = 1, AGAIN_S = 60, DAY_S = 86400, SOON_S = 7 * DAY_S };

struct bt_rpc_tls_files {
    const char     *names[N_FILES]; /* certificate, key, authorities of clients; borrowed */
    const char     *host;           /* borrowed */
    struct stat     seen[N_FILES];
    uint64_t        look_ns, read_ns; /* when to look next, and to read if nothing changes then */
    uint64_t        warn_ns;          /* when to look at dates next */
    bool            refused;          /* what they hold now, of which tls is nothing */
    pthread_mutex_t lock;             /* of what follows */
    pem_texts       tls;
    bool            fresh; /* gRPC has not fetched it */
};

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Has one of them changed since the last look? */
static bool look(bt_rpc_tls_files *files)
{
    bool changed = false;

    for (int i = 0; i < N_FILES; i++) {
        struct stat now = {0};

        if (files->names[i] != NULL && stat(files->names[i], &now) != 0) now = (struct stat){0};
        changed        = changed || !is_same(&now, &files->seen[i]);
        files->seen[i] = now;
    }
    return changed;
}

/* Of clients a certificate where there are authorities that sign such. */
static grpc_ssl_client_certificate_request_type asks_for(const char *client_ca)
{
    return client_ca != NULL ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
}

/* NULL when the PEM texts are none. */
static grpc_server_credentials *credentials_of(const pem_texts *tls)
{
    grpc_ssl_pem_key_cert_pair pair = {tls->key, tls->cert};

    return grpc_ssl_server_credentials_create_ex(tls->client_ca, &pair, 1, asks_for(tls->client_ca),
                                                 NULL);
}

/* Would a server on this host, at any port, take them? */
static bt_status try_pems(const char *host, const pem_texts *tls)
{
    bt_status                st     = BT_OK;
    grpc_completion_queue   *cq     = grpc_completion_queue_create_for_next(NULL);
    grpc_server             *server = grpc_server_create(bt_rpc_server_args(), NULL);
    grpc_server_credentials *creds  = credentials_of(tls);
    int                      port   = 0;
    char                     address[BT_ADDRESS_BYTES];

    bt_join_address(host, 0, address);
    grpc_server_register_completion_queue(server, cq, NULL);
    if (creds != NULL) {
        port = grpc_server_add_http2_port(server, address, creds);
        grpc_server_credentials_release(creds);
    }
    grpc_server_start(server); /* else it cannot be shut down */
    grpc_server_shutdown_and_notify(server, cq, NULL);
    grpc_completion_queue_shutdown(cq);
    while (grpc_completion_queue_next(cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_server_destroy(server);
    grpc_completion_queue_destroy(cq);
    BT_REQUIRE(port > 0, BT_ERR_IO,
               "gRPC refuses the TLS files: do certificate and key belong together%s?",
               tls->client_ca != NULL ? ", and are the authorities of clients in order" : "");
out:
    return st;
}

static bt_status read_files(bt_rpc_tls_files *files)
{
    bt_status st  = BT_OK;
    pem_texts tls = {0}, before;

    BT_TRY(read_pems(files->names[0], files->names[1], files->names[2], &tls));
    BT_TRY(try_pems(files->host, &tls));
    pthread_mutex_lock(&files->lock);
    before       = files->tls;
    files->tls   = tls;
    files->fresh = true;
    pthread_mutex_unlock(&files->lock);
    tls = before;
out:
    free_pems(&tls);
    return st;
}

bt_status bt_rpc_tls_open(const char *cert, const char *key, const char *client_ca,
                          const char *host, bt_rpc_tls_files **files_out)
{
    bt_status         st    = BT_OK;
    bt_rpc_tls_files *files = bt_calloc(1, sizeof(*files));

    BT_REQUIRE(files != NULL, BT_ERR_NO_MEMORY, "the TLS files");
    pthread_mutex_init(&files->lock, NULL);
    files->names[0] = cert;
    files->names[1] = key;
    files->names[2] = client_ca;
    files->host     = host;
    files->read_ns  = UINT64_MAX;
    look(files); /* before they are read: what changes meanwhile is seen next time */
    BT_TRY(read_files(files));
    *files_out = files;
    files      = NULL; /* handed over */
out:
    bt_rpc_tls_close(files);
    return st;
}

/* Of the n-th certificate in the file.  It is served all the same: what clients check is theirs. */
static void warn_of_dates(const char *path, uint32_t n, const X509 *cert)
{
    const ASN1_TIME *begin = X509_get0_notBefore(cert), *end = X509_get0_notAfter(cert);
    time_t           now = time(NULL), soon = now + SOON_S;
    bool             early = X509_cmp_time(begin, &now) > 0;
    struct tm        at;
    char             text[32] = "?";

    if (!early && X509_cmp_time(end, &soon) > 0) return;
    if (ASN1_TIME_to_tm(early ? begin : end, &at) == 1)
        strftime(text, sizeof(text), "%F %R UTC", &at);
    BT_WARN("%s: certificate %u %s %s: replace the file, which is read again", path, n,
            early                          ? "is not valid before"
            : X509_cmp_time(end, &now) < 0 ? "was valid until"
                                           : "is valid until",
            text);
}

static void warn_of_file(const char *path, const char *pems)
{
    BIO     *bio = pems != NULL ? BIO_new_mem_buf(pems, -1) : NULL;
    X509    *cert;
    uint32_t n = 0;

    while (bio != NULL && (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL)) != NULL) {
        warn_of_dates(path, ++n, cert);
        X509_free(cert);
    }
    BIO_free(bio);
    ERR_clear_error(); /* the end of the file, which gRPC would take for its own */
}

void bt_rpc_tls_refresh(bt_rpc_tls_files *files, uint64_t now_ns)
{
    if (files == NULL || now_ns < files->look_ns) return;
    files->look_ns = now_ns + LOOK_S * BT_NS_PER_S;
    if (now_ns >= files->warn_ns) {
        files->warn_ns = now_ns + DAY_S * BT_NS_PER_S;
        warn_of_file(files->names[0], files->tls.cert);
        warn_of_file(files->names[2], files->tls.client_ca);
    }
    if (look(files)) { /* the others may be about to: they are read once all stand still */
        files->read_ns = now_ns;
        return;
    }
    if (now_ns < files->read_ns) return;
    files->refused = read_files(files) != BT_OK;
    if (!files->refused) {
        files->read_ns = UINT64_MAX;
        files->warn_ns = 0;
        BT_INFO("the TLS files have changed: new connections get what %s has now", files->names[0]);
    } else {
        files->read_ns = now_ns + AGAIN_S * BT_NS_PER_S;
        BT_WARN("the TLS files have changed and cannot be used: the ones before stay in use");
    }
}

bool bt_rpc_tls_refused(const bt_rpc_tls_files *files) { return files != NULL && files->refused; }

void bt_rpc_tls_close(bt_rpc_tls_files *files)
{
    if (files == NULL) return;
    free_pems(&files->tls);
    pthread_mutex_destroy(&files->lock);
    bt_free(files);
}

/* At each handshake. */
static grpc_ssl_certificate_config_reload_status fetch(void                                *ctx,
                                                       grpc_ssl_server_certificate_config **out)
{
    bt_rpc_tls_files                         *files  = ctx;
    grpc_ssl_certificate_config_reload_status status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    grpc_ssl_pem_key_cert_pair                pair;

    pthread_mutex_lock(&files->lock);
    if (files->fresh) {
        pair = (grpc_ssl_pem_key_cert_pair){files->tls.key, files->tls.cert};
        /* gRPC 1.51 asserts that there are authorities, also where no client is asked for a
         * certificate that they would have signed. */
        *out = grpc_ssl_server_certificate_config_create(
            files->tls.client_ca != NULL ? files->tls.client_ca : files->tls.cert, &pair, 1);
        files->fresh = false;
        status       = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
    }
    pthread_mutex_unlock(&files->lock);
    return status;
}

grpc_server_credentials *bt_rpc_tls_credentials(bt_rpc_tls_files *files)
{
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(asks_for(files->names[2]),
                                                                        fetch, files));
}

/* ---- clients */

static bt_status client_credentials(const bt_rpc_client_tls *tls, grpc_channel_credentials **out)
{
    bt_status                  st  = BT_OK;
    char                      *ca  = NULL;
    pem_texts                  own = {0};
    grpc_ssl_pem_key_cert_pair pair;

    if (!tls->on) {
        *out = grpc_insecure_credentials_create();
        return BT_OK;
    }
    if (tls->ca != NULL) BT_TRY(read_pem(tls->ca, "CERTIFICATE-----", &ca));
    if (tls->cert != NULL) BT_TRY(read_pems(tls->cert, tls->key, NULL, &own));
    pair = (grpc_ssl_pem_key_cert_pair){own.key, own.cert};
    *out = grpc_ssl_credentials_create(ca, tls->cert != NULL ? &pair : NULL, NULL, NULL);
    BT_REQUIRE(*out != NULL, BT_ERR_IO, "gRPC cannot use the TLS files");
out:
    free_pems(&own);
    bt_free(ca);
    return st;
}

bt_status bt_rpc_channel_create(const char *address, const bt_rpc_client_tls *tls,
                                grpc_channel **channel_out)
{
    enum { MAX_ARGS = 16 };
    bt_status                 st    = BT_OK;
    const grpc_channel_args  *usual = bt_rpc_client_args();
    grpc_arg                  args[MAX_ARGS];
    grpc_channel_args         all   = {usual->num_args, args};
    grpc_channel_credentials *creds = NULL;

    BT_ASSERT(usual->num_args < MAX_ARGS);
    memcpy(args, usual->args, usual->num_args * sizeof(*args));
    if (tls->server_name != NULL)
        args[all.num_args++] = (grpc_arg){.type         = GRPC_ARG_STRING,
                                          .key          = (char *)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
                                          .value.string = (char *)tls->server_name};
    BT_TRY(client_credentials(tls, &creds));
    *channel_out = grpc_channel_create(address, creds, &all);
out:
    if (creds != NULL) grpc_channel_credentials_release(creds);
    return st;
}
