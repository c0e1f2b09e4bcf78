#include "tutorials/12-server/server.h"

#include <stdlib.h>
#include <string.h>

/* In seconds: how often steps are told of that change no request's state, and how long after the
 * last look anything is. */
static const double every = 0.03, interest = 2;

void live_view_end(struct live_view *view) {
    for (int i = 0; i < LIVE_CHANGES; i++)
        json_decref(view->changes[i]);
    history_end(&view->history);
}

void live_view_update(struct live_view *view, const struct engine *e) {
    double clock = clock_now(), now = engine_now(e);
    pthread_mutex_lock(&view->lock);
    struct history *h = &view->history;
    if (!h->memory)
        history_start(h, e->options->memory, false, now);
    view->began = clock - now;
    if (clock - view->asked >= interest) {
        h->began = now; /* who comes and goes until the next look is not told of */
    } else if (clock - view->made > every || !e->scheduler.n_running || history_is_new(h, e, now)) {
        json_t *change = history_take(h, e, now);
        if (change) { /* in place of the oldest */
            json_t **place = &view->changes[view->n_changes++ % LIVE_CHANGES];
            json_decref(*place);
            *place = change;
        }
        view->made = clock;
    }
    pthread_mutex_unlock(&view->lock);
}

/* The changes from number `since` on; if some of them are not there any more, one of everything. */
static json_t *changes_since(const struct live_view *view, long since, bool *all) {
    json_t *list = json_array();
    *all = since < 0 || since > view->n_changes || since < view->n_changes - LIVE_CHANGES;
    if (*all)
        json_array_append_new(list, history_all(&view->history));
    for (long i = since; i < view->n_changes && !*all; i++)
        json_array_append(list, view->changes[i % LIVE_CHANGES]);
    return list;
}

char *live_view_text(struct live_view *view, long since) {
    bool all;
    pthread_mutex_lock(&view->lock);
    view->asked = clock_now();
    json_t *list = changes_since(view, since, &all);
    double now = view->began > 0 ? view->asked - view->began : 0; /* 0: it has not begun */
    json_t *state =
        json_pack("{sf sI sb si si si so}", "now", now, "next", (json_int_t)view->n_changes, "all",
                  all, "block_size", view->history.block_size, "blocks", view->history.n_blocks,
                  "all_blocks", view->history.all_blocks, "changes", list);
    char *text = state ? json_dumps(state, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(state); /* under the lock: the changes are counted by both threads */
    pthread_mutex_unlock(&view->lock);
    return text;
}
