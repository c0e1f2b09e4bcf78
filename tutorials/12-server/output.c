/*
 * What is to be sent to a client, and the text of its events. Under the server's lock.
 */
#include "tutorials/12-server/server.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of an answer that wait for a client to read them. */
enum { MOST_UNSENT = 16 << 20 };

/* Room for n bytes more. Returns whether there is. */
static bool make_room(struct exchange *x, size_t n) {
    x->n_out -= x->n_sent;
    if (x->n_sent)
        memmove(x->out, x->out + x->n_sent, x->n_out);
    x->n_sent = 0;
    if (x->n_out + n <= x->capacity)
        return true;
    size_t capacity = 2 * (x->n_out + n);
    char *larger = x->n_out + n > MOST_UNSENT ? NULL : realloc(x->out, capacity);
    x->out = larger ? larger : x->out;
    x->capacity = larger ? capacity : x->capacity;
    return larger != NULL;
}

void exchange_put(struct exchange *x, const char *text, size_t n) {
    if (x->gone || x->broken)
        return;
    if (x->n_out + n > x->capacity && !make_room(x, n)) {
        x->broken = true;
        exchange_cancel(x);
        return;
    }
    memcpy(x->out + x->n_out, text, n);
    x->n_out += n;
}

void exchange_put_event(struct exchange *x, json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    if (text) {
        exchange_put(x, "data: ", 6);
        exchange_put(x, text, strlen(text));
        exchange_put(x, "\n\n", 2);
    }
    free(text);
}

/* The form is an event whose text is one character, without that text. */
static bool make_form(struct event_form *f, const struct exchange *x, int index) {
    static const char mark[] = "\"\\u0001\"";
    struct api_choice choice = {.index = index, .text = "\1", .n_text = 1};
    json_t *choices = json_array();
    json_array_append_new(choices, api_choice_json(&x->head, &choice, true));
    json_t *json = api_answer_json(&x->head, choices, true, -1, 0);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    char *list = text ? strstr(text, "\"choices\":[") : NULL;
    char *at = list ? strstr(list, mark) : NULL;
    json_decref(json);
    if (at) {
        f->text = text;
        f->n_before = (size_t)(at - text);
        memmove(at, at + sizeof mark - 1, strlen(at + sizeof mark - 1) + 1);
    } else {
        free(text);
    }
    return at;
}

void exchange_put_text(struct exchange *x, int index, struct event_form *f, const char *text,
                       size_t n) {
    json_t *string = json_stringn(text, n);
    char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (quoted && (f->text || make_form(f, x, index))) {
        exchange_put(x, "data: ", 6);
        exchange_put(x, f->text, f->n_before);
        exchange_put(x, quoted, strlen(quoted));
        exchange_put(x, f->text + f->n_before, strlen(f->text + f->n_before));
        exchange_put(x, "\n\n", 2);
    }
    free(quoted);
    json_decref(string);
}
