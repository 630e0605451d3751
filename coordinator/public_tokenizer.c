/* GetTokenizer: the files of the model's tokenizer as one zip archive, for gateways on whose
 * machine the model is not.
 *
 * It is made once, when the port opens, of the tokenizer that this server goes by itself, whatever
 * becomes of the files later; and packed into messages that all calls share, so that a client which
 * reads nothing holds none of its bytes.  Stored, not compressed, and without times: equal files
 * make equal bytes.
 *
 * Whoever may connect may ask for it, so what all calls together send is bounded, by bytes: a call
 * is given those of the archive before it begins, or refused, and what it has not sent goes back.
 */
#include <limits.h>
#include <minizip/zip.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/dialect.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/file.h"
#include "proto/vllm_engine.pb-c.h"

#define ARCHIVE "the archive of the tokenizer's files"

/* Of a message; and of all files: SMG takes archives of up to 200 MiB. */
enum { PIECE_BYTES = 64 << 10, FILES_BYTES = 199 << 20 };
/* That calls may send at once, after a while without any; and so many come back in a second. */
#define AT_ONCE_BYTES (2048.0 * (1 << 20))
#define BYTES_PER_S   (32.0 * (1 << 20))

typedef Vllm__Grpc__Engine__GetTokenizerChunk chunk_pb; /* the other protocol has the same */

struct bt_archive {
    grpc_byte_buffer **messages; /* owned [n_messages] */
    size_t             n_messages, n_bytes;
    double             left;  /* bytes that calls may be given, */
    uint64_t           at_ns; /* as of then */
};

/* ---- making it */

/* minizip writes to a stream that is open, and stays so. */
static voidpf zip_open(voidpf stream, const void *path, int mode)
{
    (void)path, (void)mode;
    return stream;
}

static int zip_close(voidpf opaque, voidpf stream)
{
    (void)opaque;
    return fflush(stream);
}

static bt_status add_file(zipFile zip, const char *path, size_t *n_all)
{
    static const zip_fileinfo INFO  = {.dosDate = 1 << 21 | 1 << 16}; /* 1980-01-01 */
    bt_status                 st    = BT_OK;
    char                     *bytes = NULL;
    size_t                    n;

    BT_TRY(bt_read_regular(path, FILES_BYTES, &bytes, &n));
    *n_all += n;
    BT_REQUIRE(*n_all <= FILES_BYTES, BT_ERR_FORMAT,
               "%s: expected at most %d bytes in all files of the tokenizer, found more", path,
               FILES_BYTES);
    BT_REQUIRE(zipOpenNewFileInZip(zip, strrchr(path, '/') + 1, &INFO, NULL, 0, NULL, 0, NULL, 0,
                                   0) == ZIP_OK &&
                   zipWriteInFileInZip(zip, bytes, (unsigned)n) == ZIP_OK &&
                   zipCloseFileInZip(zip) == ZIP_OK,
               BT_ERR_NO_MEMORY, ARCHIVE);
out:
    bt_free(bytes);
    return st;
}

/* The tokenizer, and what there is of its settings, the chat template and what ends a reply. */
static bt_status add_files(zipFile zip, const char *model)
{
    static const char *const BESIDE[] = {"tokenizer_config.json", "special_tokens_map.json",
                                         "chat_template.jinja",   "chat_template.json",
                                         "config.json",           "generation_config.json"};
    bt_status                st       = BT_OK;
    size_t                   n_all    = 0;
    char                     path[PATH_MAX];

    bt_tokenizer_file(model, path);
    BT_TRY(add_file(zip, path, &n_all));
    for (size_t i = 0; i < sizeof(BESIDE) / sizeof(BESIDE[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", model, BESIDE[i]);
        if (bt_file_exists(path)) BT_TRY(add_file(zip, path, &n_all));
    }
out:
    return st;
}

static bt_status write_zip(FILE *stream, const char *model)
{
    bt_status           st = BT_OK;
    zlib_filefunc64_def functions;
    zipFile             zip;
    bool                closed;

    fill_fopen64_filefunc(&functions);
    functions.opaque       = stream;
    functions.zopen64_file = zip_open;
    functions.zclose_file  = zip_close;
    zip                    = zipOpen2_64("", APPEND_STATUS_CREATE, NULL, &functions);
    BT_REQUIRE(zip != NULL, BT_ERR_NO_MEMORY, ARCHIVE);
    st     = add_files(zip, model);
    closed = zipClose(zip, NULL) == ZIP_OK;
    BT_REQUIRE(st != BT_OK || closed, BT_ERR_NO_MEMORY, ARCHIVE);
out:
    return st;
}

static bt_status pack(bt_archive *a, char *zip, size_t n_bytes)
{
    bt_status     st = BT_OK;
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned      n_hash = 0;
    char          hex[2 * EVP_MAX_MD_SIZE + 1];
    chunk_pb      m = VLLM__GRPC__ENGINE__GET_TOKENIZER_CHUNK__INIT;

    BT_REQUIRE(EVP_Digest(zip, n_bytes, hash, &n_hash, EVP_sha256(), NULL) == 1, BT_ERR_NO_MEMORY,
               ARCHIVE);
    for (unsigned i = 0; i < n_hash; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    a->n_bytes  = n_bytes;
    a->left     = AT_ONCE_BYTES;
    a->at_ns    = bt_now_ns();
    a->messages = bt_calloc((n_bytes + PIECE_BYTES - 1) / PIECE_BYTES, sizeof(*a->messages));
    BT_REQUIRE(a->messages != NULL, BT_ERR_NO_MEMORY, ARCHIVE);
    for (size_t at = 0; at < n_bytes; at += PIECE_BYTES) {
        bool last = n_bytes - at <= PIECE_BYTES;

        m.data.data = (uint8_t *)zip + at;
        m.data.len  = last ? n_bytes - at : PIECE_BYTES;
        if (last) m.sha256 = hex;
        a->messages[a->n_messages++] = bt_rpc_pack(&m.base);
    }
out:
    return st;
}

bt_status bt_archive_create(const char *model, bt_archive **archive_out)
{
    bt_status   st      = BT_OK;
    char       *zip     = NULL;
    size_t      n_bytes = 0;
    FILE       *stream  = open_memstream(&zip, &n_bytes);
    bt_archive *a       = bt_calloc(1, sizeof(*a));

    BT_REQUIRE(stream != NULL && a != NULL, BT_ERR_NO_MEMORY, ARCHIVE);
    BT_TRY(write_zip(stream, model));
    BT_TRY(pack(a, zip, n_bytes));
    *archive_out = a;
    a            = NULL; /* handed over */
out:
    if (stream != NULL) fclose(stream);
    free(zip);
    bt_archive_destroy(a);
    return st;
}

void bt_archive_destroy(bt_archive *a)
{
    if (a == NULL) return;
    for (size_t i = 0; i < a->n_messages; i++)
        grpc_byte_buffer_destroy(a->messages[i]);
    bt_free(a->messages);
    bt_free(a);
}

/* ---- sending it */

static void send_next(bt_call *call)
{
    const bt_archive *a = call->pub->archive;
    bool              last;

    if (call->gone) return;
    last = call->n_pieces + 1 == a->n_messages;
    bt_call_send(call, grpc_byte_buffer_copy(a->messages[call->n_pieces++]), GRPC_STATUS_OK,
                 last ? "" : NULL, last ? NULL : send_next);
}

static void give_back(bt_archive *a, double bytes)
{
    a->left += bytes;
    if (a->left > AT_ONCE_BYTES) a->left = AT_ONCE_BYTES;
}

static bool may_begin(bt_archive *a)
{
    uint64_t now_ns = bt_now_ns();

    give_back(a, (double)(now_ns - a->at_ns) / BT_NS_PER_S * BYTES_PER_S);
    a->at_ns = now_ns;
    if (a->left < (double)a->n_bytes) return false;
    a->left -= (double)a->n_bytes;
    return true;
}

static void on_closed(bt_rpc_tag *tag, bool ok)
{
    bt_call    *call   = tag->ctx;
    bt_archive *a      = call->pub->archive;
    size_t      n_sent = call->n_pieces * PIECE_BYTES;

    (void)ok;
    call->gone = true;
    if (n_sent > 0 && n_sent < a->n_bytes) give_back(a, (double)(a->n_bytes - n_sent));
    bt_call_release(call);
}

void bt_public_send_tokenizer(bt_call *call, const ProtobufCMessage *request)
{
    (void)request;
    bt_call_watch_close(call, on_closed);
    if (call->pub->archive == NULL)
        bt_call_send(call, NULL, GRPC_STATUS_FAILED_PRECONDITION,
                     "no tokenizer: see the server's log", NULL);
    else if (!may_begin(call->pub->archive))
        bt_call_send(call, NULL, GRPC_STATUS_RESOURCE_EXHAUSTED,
                     "the tokenizer has been asked for too often: try again later", NULL);
    else
        send_next(call);
}
