#include "core/processes.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

void bt_process_name(pid_t pid, char name_out[BT_PROCESS_NAME])
{
    char  path[64];
    FILE *f;

    name_out[0] = '\0';
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    f = fopen(path, "re");
    if (f == NULL) return;
    if (fgets(name_out, BT_PROCESS_NAME, f) == NULL) name_out[0] = '\0';
    fclose(f);
    name_out[strcspn(name_out, "\n")] = '\0';
}

bool bt_process_each_child(pid_t parent, bt_child_fn fn, void *ctx)
{
    char           path[NAME_MAX + 64];
    DIR           *threads;
    struct dirent *thread;
    FILE          *children;
    long           child;
    bool           over = false;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)parent);
    threads = opendir(path);
    while (threads != NULL && !over && (thread = readdir(threads)) != NULL) {
        if (thread->d_name[0] == '.') continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%s/children", (int)parent, thread->d_name);
        children = fopen(path, "re");
        if (children == NULL) continue; /* the thread has ended */
        while (!over && fscanf(children, "%ld", &child) == 1)
            over = fn(parent, (pid_t)child, ctx);
        fclose(children);
    }
    if (threads != NULL) closedir(threads);
    return over;
}
