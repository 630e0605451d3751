/* TLS files of a server. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "proto/rpc.h"

enum { PEM_MAX = 1 << 20 };

static bt_status read_pem(const char *path, const char *marker, char **text_out)
{
    bt_status st   = BT_OK;
    char     *text = bt_calloc(1, PEM_MAX + 1);
    FILE     *f    = fopen(path, "re");
    size_t    n    = 0;

    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "the file %s", path);
    BT_REQUIRE(f != NULL, BT_ERR_IO, "%s: %s", path, strerror(errno));
    n = fread(text, 1, PEM_MAX + 1, f);
    BT_REQUIRE(ferror(f) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    BT_REQUIRE(n <= PEM_MAX, BT_ERR_IO, "%s: over %d bytes, expected a PEM file", path, PEM_MAX);
    text[n] = 0;
    BT_REQUIRE(strlen(text) == n && strstr(text, "-----BEGIN ") != NULL &&
                   strstr(text, marker) != NULL,
               BT_ERR_IO, "%s: expected a PEM file with a %s", path, marker);
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
