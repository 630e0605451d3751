/* grpc.reflection.v1 (v1alpha has the same messages): names the public services and sends the
 * .proto files that declare them, so that tools like grpcurl need none.  No file imports another
 * one or declares extensions. */
#include <string.h>

#include "coordinator/dialect.h"
#include "core/alloc.h"
#include "proto/descriptor.pb-c.h"
#include "proto/health.pb-c.h"
#include "proto/reflection.pb-c.h"

/* A google.protobuf.FileDescriptorSet of what clients may know (coordinator/CMakeLists.txt). */
extern const unsigned char bt_public_protos[];
extern const size_t        bt_public_protos_bytes;

typedef Grpc__Reflection__V1__ServerReflectionRequest  request_pb;
typedef Grpc__Reflection__V1__ServerReflectionResponse response_pb;
typedef Grpc__Reflection__V1__ServiceResponse          service_pb;
#define ASKED(kind)  GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##kind
#define ANSWER(kind) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##kind
typedef Baton__Descriptor__File file_pb;

struct bt_reflection {
    Baton__Descriptor__FileSet *set;   /* owned, as is all below: the files as they are sent */
    file_pb                   **files; /* [set->n_files]: what they declare */
};

/* ---- who declares a name */

/* What follows "name." in symbol, "" when symbol is that name; NULL: neither. */
static const char *after(const char *symbol, const char *name)
{
    size_t n = strlen(name);

    if (strncmp(symbol, name, n) != 0 || (symbol[n] != 0 && symbol[n] != '.')) return NULL;
    return symbol + n + (symbol[n] == '.');
}

static bool is_in(size_t n, Baton__Descriptor__Named *const *names, const char *symbol)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(symbol, names[i]->name) == 0) return true;
    return false;
}

static bool in_enums(size_t n, Baton__Descriptor__Enum *const *enums, const char *symbol)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(symbol, enums[i]->name) == 0 ||
            is_in(enums[i]->n_values, enums[i]->values, symbol))
            return true;
    return false;
}

static bool in_messages(size_t n, Baton__Descriptor__Message *const *messages, const char *symbol)
{
    for (size_t i = 0; i < n; i++) {
        const Baton__Descriptor__Message *m    = messages[i];
        const char                       *rest = after(symbol, m->name);

        if (rest != NULL &&
            (rest[0] == 0 || is_in(m->n_fields, m->fields, rest) ||
             is_in(m->n_oneofs, m->oneofs, rest) || in_enums(m->n_enums, m->enums, rest) ||
             in_messages(m->n_nested, m->nested, rest)))
            return true;
    }
    return false;
}

static bool in_services(size_t n, Baton__Descriptor__Service *const *services, const char *symbol)
{
    for (size_t i = 0; i < n; i++) {
        const char *rest = after(symbol, services[i]->name);

        if (rest != NULL &&
            (rest[0] == 0 || is_in(services[i]->n_methods, services[i]->methods, rest)))
            return true;
    }
    return false;
}

static bool declares(const file_pb *file, const char *symbol)
{
    const char *rest = after(symbol, file->package);

    return rest != NULL && (in_messages(file->n_messages, file->messages, rest) ||
                            in_enums(file->n_enums, file->enums, rest) ||
                            in_services(file->n_services, file->services, rest));
}

static bool is_named(const file_pb *file, const char *name)
{
    return strcmp(file->name, name) == 0;
}

bt_status bt_reflection_create(bt_reflection **reflection_out)
{
    bt_status      st = BT_OK;
    bt_reflection *r  = bt_calloc(1, sizeof(*r));

    BT_REQUIRE(r != NULL, BT_ERR_NO_MEMORY, "reflection");
    r->set = baton__descriptor__file_set__unpack(NULL, bt_public_protos_bytes, bt_public_protos);
    BT_REQUIRE(r->set != NULL, BT_ERR_NO_MEMORY, "the public .proto files");
    r->files = bt_calloc(r->set->n_files, sizeof(*r->files));
    BT_REQUIRE(r->files != NULL, BT_ERR_NO_MEMORY, "the public .proto files");
    for (size_t i = 0; i < r->set->n_files; i++) {
        const ProtobufCBinaryData *packed = &r->set->files[i];

        r->files[i] = baton__descriptor__file__unpack(NULL, packed->len, packed->data);
        BT_REQUIRE(r->files[i] != NULL, BT_ERR_NO_MEMORY, "a public .proto file");
    }
    *reflection_out = r;
    r               = NULL; /* handed over */
out:
    bt_reflection_destroy(r);
    return st;
}

void bt_reflection_destroy(bt_reflection *r)
{
    if (r == NULL) return;
    for (size_t i = 0; r->files != NULL && i < r->set->n_files; i++)
        if (r->files[i] != NULL) baton__descriptor__file__free_unpacked(r->files[i], NULL);
    bt_free(r->files);
    if (r->set != NULL) baton__descriptor__file_set__free_unpacked(r->set, NULL);
    bt_free(r);
}

/* ---- answers */

static grpc_byte_buffer *error(response_pb *reply, grpc_status_code code, const char *why)
{
    Grpc__Reflection__V1__ErrorResponse e = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;

    e.error_code                 = (int32_t)code;
    e.error_message              = (char *)why;
    reply->error_response        = &e;
    reply->message_response_case = ANSWER(ERROR_RESPONSE);
    return bt_rpc_pack(&reply->base);
}

static grpc_byte_buffer *services(const bt_public *pub, response_pb *reply)
{
    enum { N_MAX = 4 };
    const char *names[N_MAX] = {grpc__health__v1__health__descriptor.name,
                                grpc__reflection__v1__server_reflection__descriptor.name};
    size_t      n            = 2;
    Grpc__Reflection__V1__ListServiceResponse list =
        GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    service_pb each[N_MAX], *pointers[N_MAX];

    for (size_t i = 0; i < pub->n_dialects; i++)
        names[n++] = pub->dialects[i]->service;
    for (size_t i = 0; i < n; i++) {
        each[i]      = (service_pb)GRPC__REFLECTION__V1__SERVICE_RESPONSE__INIT;
        each[i].name = (char *)names[i];
        pointers[i]  = &each[i];
    }
    list.n_service                = n;
    list.service                  = pointers;
    reply->list_services_response = &list;
    reply->message_response_case  = ANSWER(LIST_SERVICES_RESPONSE);
    return bt_rpc_pack(&reply->base);
}

/* It declares a protocol that is not spoken here. */
static bool is_hidden(const bt_public *pub, const file_pb *file)
{
    return bt_public_asked(pub, bt_dialect_sglang.service) == BT_ASKED_UNKNOWN &&
           after(bt_dialect_sglang.service, file->package) != NULL;
}

static grpc_byte_buffer *file_that(const bt_public *pub, response_pb *reply,
                                   bool (*has)(const file_pb *file, const char *what),
                                   const char *what)
{
    Grpc__Reflection__V1__FileDescriptorResponse files =
        GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    const bt_reflection *r = pub->reflection;
    size_t               i = 0;

    while (i < r->set->n_files && (is_hidden(pub, r->files[i]) || !has(r->files[i], what)))
        i++;
    if (i == r->set->n_files)
        return error(reply, GRPC_STATUS_NOT_FOUND, "no file or symbol of this name is known here");
    files.n_file_descriptor_proto   = 1;
    files.file_descriptor_proto     = &r->set->files[i];
    reply->file_descriptor_response = &files;
    reply->message_response_case    = ANSWER(FILE_DESCRIPTOR_RESPONSE);
    return bt_rpc_pack(&reply->base);
}

grpc_byte_buffer *bt_public_reflect(bt_call *call, const ProtobufCMessage *request)
{
    request_pb *pb    = (request_pb *)request; /* the answer holds it, and is packed at once */
    response_pb reply = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;

    reply.valid_host       = pb->host;
    reply.original_request = pb;
    switch (pb->message_request_case) {
    case ASKED(LIST_SERVICES): return services(call->pub, &reply);
    case ASKED(FILE_BY_FILENAME):
        return file_that(call->pub, &reply, is_named, pb->file_by_filename);
    case ASKED(FILE_CONTAINING_SYMBOL):
        return file_that(call->pub, &reply, declares, pb->file_containing_symbol);
    case ASKED(_NOT_SET):
        return error(&reply, GRPC_STATUS_INVALID_ARGUMENT, "the request asks for nothing");
    default: return error(&reply, GRPC_STATUS_NOT_FOUND, "no extensions are declared here");
    }
}
