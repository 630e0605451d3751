/* tools/profile/text.h - numbers for people: three or four digits and a unit. */
#ifndef BT_TOOLS_PROFILE_TEXT_H
#define BT_TOOLS_PROFILE_TEXT_H

typedef struct {
    char text[24];
} bt_text;

bt_text bt_text_bytes(double bytes);  /* "81.92 kB": decimal units, as in the studies */
bt_text bt_text_flops(double flops);  /* "33.64 MFLOP" */
bt_text bt_text_time(double seconds); /* "12.3 ms" */
bt_text bt_text_count(double n);      /* "1.23 M" */

#endif
