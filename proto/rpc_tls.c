/* TLS files of servers and clients. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/file.h"
#include "proto/rpc.h"

enum { PEM_MAX = 1 << 20 };

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
    if (text != NULL) explicit_bzero(text, n <= PEM_MAX ? n : PEM_MAX);
    bt_free(text);
    return st;
}

bt_status bt_rpc_tls_read(const char *cert, const char *key, const char *client_ca,
                          bt_rpc_tls *tls_out)
{
    bt_status  st  = BT_OK;
    bt_rpc_tls tls = {0};

    BT_TRY(read_pem(cert, "CERTIFICATE-----", &tls.cert));
    BT_TRY(read_pem(key, "PRIVATE KEY-----", &tls.key));
    BT_REQUIRE(strstr(tls.key, "ENCRYPTED") == NULL, BT_ERR_IO,
               "%s: the key has a passphrase, which nobody here can type: expected one without "
               "(openssl pkey -in FILE -out FILE)",
               key);
    if (client_ca != NULL) BT_TRY(read_pem(client_ca, "CERTIFICATE-----", &tls.client_ca));
    *tls_out = tls;
    tls      = (bt_rpc_tls){0}; /* handed over */
out:
    bt_rpc_tls_free(&tls);
    return st;
}

void bt_rpc_tls_free(bt_rpc_tls *tls)
{
    if (tls->key != NULL) explicit_bzero(tls->key, strlen(tls->key));
    bt_free(tls->cert);
    bt_free(tls->key);
    bt_free(tls->client_ca);
    *tls = (bt_rpc_tls){0};
}

/* ---- clients */

static bt_status client_credentials(const bt_rpc_client_tls *tls, grpc_channel_credentials **out)
{
    bt_status                  st  = BT_OK;
    char                      *ca  = NULL;
    bt_rpc_tls                 own = {0};
    grpc_ssl_pem_key_cert_pair pair;

    if (!tls->on) {
        *out = grpc_insecure_credentials_create();
        return BT_OK;
    }
    if (tls->ca != NULL) BT_TRY(read_pem(tls->ca, "CERTIFICATE-----", &ca));
    if (tls->cert != NULL) BT_TRY(bt_rpc_tls_read(tls->cert, tls->key, NULL, &own));
    pair = (grpc_ssl_pem_key_cert_pair){own.key, own.cert};
    *out = grpc_ssl_credentials_create(ca, tls->cert != NULL ? &pair : NULL, NULL, NULL);
    BT_REQUIRE(*out != NULL, BT_ERR_IO, "gRPC cannot use the TLS files");
out:
    bt_rpc_tls_free(&own);
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
