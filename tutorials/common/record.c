#include "tutorials/common/demo.h"
#include "tutorials/common/output.h"
#include "tutorials/common/page.h"

#include <string.h>

/* Changes in a file at most: a browser still steps through them without a pause. */
enum { MOST_CHANGES = 20000 };

int record_start(struct record *r, const struct request_memory *memory, struct error *err) {
    *r = (struct record){.changes = json_array()};
    history_start(&r->history, memory, true, 0);
    return r->changes ? 0 : error_set(err, "out of memory for --html");
}

void record_end(struct record *r) {
    history_end(&r->history);
    json_decref(r->changes);
    *r = (struct record){0};
}

void record_step(struct record *r, const struct engine *e, double now) {
    if (!r->changes || r->cut)
        return;
    json_t *change = history_take(&r->history, e, now);
    if (change && json_array_append_new(r->changes, change))
        r->history.failed = true;
    r->cut = json_array_size(r->changes) >= MOST_CHANGES;
}

/* The JSON, so that no text of a request can end the script that it stands in. */
static void put_script(FILE *f, const char *json) {
    for (; *json; json++)
        if (*json == '<')
            fputs("\\u003c", f);
        else
            putc(*json, f);
}

int record_write(struct record *r, const struct demo *demo, const char *path, struct error *err) {
    static const char tag[] = "<script id=\"record\" type=\"application/json\">";
    const char *place = strstr(page_text, tag) + strlen(tag);
    const struct options *o = &demo->options;
    struct output out;
    json_t *run = json_pack("{si ss ss si si si si si sb sO}", "phase", demo->phase->number,
                            "title", demo->phase->title, "model", o->model, "max_running",
                            o->max_running, "token_budget", o->token_budget, "block_size",
                            r->history.block_size, "blocks", r->history.n_blocks, "all_blocks",
                            r->history.all_blocks, "cut", r->cut, "changes", r->changes);
    char *text =
        run && !r->history.failed ? json_dumps(run, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(run);
    if (!text)
        return error_set(err, "%s: out of memory for the steps of the run", path);
    int result = output_open(&out, path, err);
    if (!result) {
        fwrite(page_text, 1, (size_t)(place - page_text), out.file);
        put_script(out.file, text);
        fputs(place + strlen("null"), out.file);
        result = output_keep(&out, err);
    }
    free(text);
    return result;
}
