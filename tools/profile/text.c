#include "tools/profile/text.h"

#include <math.h>
#include <stdio.h>

static bt_text scaled(double v, const char *unit)
{
    static const char *const PREFIX[] = {"", "k", "M", "G", "T", "P", "E"};
    bt_text                  t;
    int                      i = 0;

    if (!isfinite(v)) {
        snprintf(t.text, sizeof(t.text), "-");
        return t;
    }
    while (fabs(v) >= 999.95 && i < 6) {
        v /= 1000;
        i++;
    }
    if (i == 0 && v == floor(v))
        snprintf(t.text, sizeof(t.text), "%.0f %s", v, unit);
    else
        snprintf(t.text, sizeof(t.text), "%.*f %s%s",
                 v < 10    ? 3
                 : v < 100 ? 2
                           : 1,
                 v, PREFIX[i], unit);
    return t;
}

bt_text bt_text_bytes(double bytes) { return scaled(bytes, "B"); }
bt_text bt_text_flops(double flops) { return scaled(flops, "FLOP"); }
bt_text bt_text_count(double n)
{
    bt_text t = scaled(n, "");

    for (char *c = t.text; *c != '\0'; c++)
        if (*c == ' ' && c[1] == '\0') *c = '\0';
    return t;
}

bt_text bt_text_time(double s)
{
    bt_text t;

    if (!isfinite(s))
        snprintf(t.text, sizeof(t.text), "-");
    else if (s < 1e-3)
        snprintf(t.text, sizeof(t.text), "%.*f us", s < 1e-5 ? 2 : 1, s * 1e6);
    else if (s < 1)
        snprintf(t.text, sizeof(t.text), "%.*f ms", s < 1e-2 ? 2 : 1, s * 1e3);
    else
        snprintf(t.text, sizeof(t.text), "%.2f s", s);
    return t;
}
