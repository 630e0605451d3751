#include "proto/secret.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "core/file.h"

enum { RANDOM_BYTES = 32 };

static bt_status check(const char *where, const char *text, size_t n)
{
    bt_status st = BT_OK;

    BT_REQUIRE(n >= BT_SECRET_MIN && n <= BT_SECRET_MAX, BT_ERR_INVALID_ARG,
               "%s: a secret of %zu characters, expected %d to %d", where, n, BT_SECRET_MIN,
               BT_SECRET_MAX);
    for (size_t i = 0; i < n; i++)
        BT_REQUIRE(text[i] > ' ' && text[i] <= '~', BT_ERR_INVALID_ARG,
                   "%s: character %zu of the secret is not visible ASCII", where, i + 1);
out:
    return st;
}

/* The file's first line. */
static bt_status read_file(const char *path, char *secret_out)
{
    bt_status   st                      = BT_OK;
    char        line[BT_SECRET_MAX + 3] = ""; /* one more than is allowed, and the newline */
    const char *why;
    FILE       *f = bt_open_regular(path, &why);
    struct stat info;

    BT_REQUIRE(f != NULL, BT_ERR_IO, "the secret's file %s: %s", path, why);
    BT_REQUIRE(fgets(line, sizeof(line), f) != NULL, BT_ERR_IO, "the secret's file %s: %s", path,
               ferror(f) ? strerror(errno) : "it is empty");
    if (fstat(fileno(f), &info) == 0 && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        BT_WARN("%s: users other than its owner can read the secret (chmod 600 prevents that)",
                path);
    line[strcspn(line, "\r\n")] = 0;
    BT_TRY(check(path, line, strlen(line)));
    memcpy(secret_out, line, strlen(line) + 1);
out:
    explicit_bzero(line, sizeof(line));
    if (f != NULL) fclose(f);
    return st;
}

bt_status bt_secret_read(char secret_out[BT_SECRET_MAX + 1])
{
    bt_status   st   = BT_OK;
    const char *text = getenv(BT_SECRET_ENV), *path = getenv(BT_SECRET_FILE_ENV);

    if (text != NULL && text[0] != 0) {
        BT_TRY(check(BT_SECRET_ENV, text, strlen(text)));
        memcpy(secret_out, text, strlen(text) + 1);
    } else if (path != NULL && path[0] != 0) {
        BT_TRY(read_file(path, secret_out));
    } else {
        secret_out[0] = 0;
    }
out:
    return st;
}

bt_status bt_secret_provide(void)
{
    bt_status     st = BT_OK;
    unsigned char bytes[RANDOM_BYTES];
    char          text[2 * RANDOM_BYTES + 1], present[BT_SECRET_MAX + 1];

    BT_TRY(bt_secret_read(present));
    if (present[0] != 0) { /* other hosts may not have the file */
        BT_REQUIRE(setenv(BT_SECRET_ENV, present, 1) == 0, BT_ERR_NO_MEMORY, "the cell's secret");
        goto out;
    }
    BT_REQUIRE(getrandom(bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes), BT_ERR_IO,
               "no random bytes for the cell's secret: %s", strerror(errno));
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    BT_REQUIRE(setenv(BT_SECRET_ENV, text, 1) == 0, BT_ERR_NO_MEMORY, "the cell's secret");
out:
    return st;
}

bool bt_secret_equal(const void *a, size_t n_a, const void *b, size_t n_b)
{
    const volatile uint8_t *x = a, *y = b;
    uint8_t                 difference = n_a != n_b;

    if (n_b == 0) return n_a == 0;
    for (size_t i = 0; i < n_a; i++)
        difference |= x[i] ^ y[i % n_b];
    return difference == 0;
}
