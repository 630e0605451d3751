/* Made by tests/oracles/unicode_added.py with tokenizers 0.23.3: do not edit.
 * How many of the code points below U+33480 and of U+E0000 to U+E01FF each regex takes, and the
 * FNV-1a hash of them in ascending order, each as one 32-bit word.  With a PCRE2 of a Unicode later
 * than 16 some are others: its tables have more then than the library's. */
/* clang-format off */
static const struct {
    const char *regex;
    uint32_t    n;
    uint64_t    hash;
} UNICODE_GOLDENS[] = {
    {"\\p{Lu}", 1858, UINT64_C(0xe0e481f9b9ac6d08)}, {"\\p{Ll}", 2258, UINT64_C(0xf2719655913aeb3a)},
    {"\\p{Lt}", 31, UINT64_C(0x87fd939e4214d25f)}, {"\\p{Lm}", 404, UINT64_C(0xf65f3bd9629aaabb)},
    {"\\p{Lo}", 136477, UINT64_C(0xed65afc3db5d15eb)}, {"\\p{Mc}", 468, UINT64_C(0xe852c808ceb73828)},
    {"\\p{Me}", 13, UINT64_C(0x696c64f66f1cef64)}, {"\\p{Nd}", 760, UINT64_C(0x8ab68431d58920ad)},
    {"\\p{Nl}", 236, UINT64_C(0x3efc2d2072e34708)}, {"\\p{No}", 915, UINT64_C(0xef6b3438c2dba6dd)},
    {"\\p{Pc}", 10, UINT64_C(0xd00ea409282cd0a1)}, {"\\p{Pd}", 27, UINT64_C(0xc3e75745381880c8)},
    {"\\p{Ps}", 79, UINT64_C(0x565e92de0f171314)}, {"\\p{Pe}", 77, UINT64_C(0x38c7dfd9bfef6f9d)},
    {"\\p{Pi}", 12, UINT64_C(0x7e9125889ad24b56)}, {"\\p{Pf}", 10, UINT64_C(0x9e0f7acc70ef32b5)},
    {"\\p{Po}", 640, UINT64_C(0x3967bb8dac75a221)}, {"\\p{Sm}", 950, UINT64_C(0x3d4204f1c28a952a)},
    {"\\p{Sc}", 63, UINT64_C(0xc101426ffdd4dcec)}, {"\\p{Sk}", 125, UINT64_C(0xcec348a193bb9dcb)},
    {"\\p{So}", 7376, UINT64_C(0x22ac65b5bc1c457e)}, {"\\p{Zs}", 17, UINT64_C(0x612d39f8a3ed9888)},
    {"\\p{Zl}", 1, UINT64_C(0xaf43a54c85cb2f17)}, {"\\p{Zp}", 1, UINT64_C(0xaf43a44c85cb2d64)},
    {"\\p{Cc}", 65, UINT64_C(0x47783dcc96f6448e)}, {"\\p{Cf}", 170, UINT64_C(0x722312b9b720c35e)},
    {"\\p{Co}", 6400, UINT64_C(0x0f959ee9fe7c7e25)}, {"\\p{L}", 141028, UINT64_C(0x9abbec5090cdd78d)},
    {"\\p{M}", 2501, UINT64_C(0x9b555c284b44a194)}, {"\\p{N}", 1911, UINT64_C(0x88882b4d56227662)},
    {"\\p{P}", 855, UINT64_C(0xff1c1fa0ee0c80ae)}, {"\\p{S}", 8514, UINT64_C(0xef33214ffa8a60da)},
    {"\\p{Z}", 19, UINT64_C(0x836ce65e972de2b9)}, {"\\p{Arabic}", 1373, UINT64_C(0xa39df3cf4bc673f5)},
    {"\\p{Cyrillic}", 508, UINT64_C(0xf663c804a6cc59fd)}, {"\\p{Devanagari}", 164, UINT64_C(0x6e43481a17f673d9)},
    {"\\p{Greek}", 518, UINT64_C(0xca18703d70ce40b7)}, {"\\p{Han}", 99030, UINT64_C(0x98f19ceb0ce18cdb)},
    {"\\p{Hangul}", 11739, UINT64_C(0xaa197ac2aa740f54)}, {"\\p{Hebrew}", 134, UINT64_C(0x39cbe1b0ad0b906f)},
    {"\\p{Hiragana}", 381, UINT64_C(0xef77c169264d0b4d)}, {"\\p{Katakana}", 321, UINT64_C(0x35e666857ec0a222)},
    {"\\p{Latin}", 1487, UINT64_C(0xcb50fe6ca387f485)}, {"\\p{Thai}", 86, UINT64_C(0x4847866337e180aa)},
    {"\\d", 760, UINT64_C(0x8ab68431d58920ad)}, {"Digits", 1924, UINT64_C(0xcefe8c12e06f18ec)},
};
/* clang-format on */
