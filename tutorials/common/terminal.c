#include "tutorials/common/terminal.h"

#include <stdio.h>
#include <unistd.h>

enum { WIDTH = 30, WORTH_SHOWING = 64 << 20 };

struct progress_bar progress_bar_start(const char *label) {
    return (struct progress_bar){.label = label, .drawn = -1, .on = isatty(STDERR_FILENO)};
}

void progress_bar_update(struct progress_bar *bar, size_t done, size_t total) {
    int percent = total ? (int)(done * 100 / total) : 100;
    if (!bar->on || percent == bar->drawn)
        return;
    char cells[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++)
        cells[i] = i * 100 < percent * WIDTH ? '#' : '.';
    cells[WIDTH] = 0;
    fprintf(stderr, "\r%s [%s] %3d %%", bar->label, cells, percent);
    bar->drawn = percent;
}

void progress_bar_end(struct progress_bar *bar) {
    if (bar->drawn >= 0)
        fprintf(stderr, "\r\033[K");
    bar->drawn = -1;
}

static void loading_update(void *context, size_t done, size_t total) {
    if (total >= WORTH_SHOWING)
        progress_bar_update(context, done, total);
}

struct progress progress_of_loading(struct progress_bar *bar) {
    return (struct progress){loading_update, bar};
}
