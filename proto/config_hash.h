/* proto/config_hash.h - whether two processes work from the same model directory. */
#ifndef BT_PROTO_CONFIG_HASH_H
#define BT_PROTO_CONFIG_HASH_H

#include <stdint.h>

/* XXH3-64 of the bytes of the file that describes the model in DIR (bt_model_config_file()), never
 * 0; 0 when it cannot be read (said in the log). */
uint64_t bt_config_hash(const char *dir);

#endif
