#include "scheduler/workload.h"

#include "model/numerics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Arrivals are at most so late. */
#define MOST_SECONDS 1e9

const struct workload_mix workload_sharegpt = {.requests_per_second = 2,
                                               .prompt_median = 80,
                                               .prompt_sigma = 1.18,
                                               .answer_median = 240,
                                               .answer_sigma = 0.83,
                                               .most_prompt = 1024,
                                               .most_answer = 1024};

const struct workload_mix workload_short = {.requests_per_second = 8,
                                            .prompt_median = 20,
                                            .prompt_sigma = 0.5,
                                            .answer_median = 24,
                                            .answer_sigma = 0.5,
                                            .most_prompt = 128,
                                            .most_answer = 128};

void workload_free(struct workload *w) {
    for (int i = 0; i < w->n; i++) {
        struct request *r = &w->requests[i];
        if (r->fork_back) /* what it points to is the first sample's */
            continue;
        for (int s = 0; s < r->n_stops; s++)
            free(r->stops[s]);
        free(r->stops);
        free(r->prompt);
        free(r->title);
    }
    free(w->requests);
    *w = (struct workload){0};
}

struct request *workload_add(struct workload *w, struct error *err) {
    if (w->n == w->capacity) {
        int capacity = w->capacity ? 2 * w->capacity : 16;
        struct request *requests = realloc(w->requests, sizeof *requests * (size_t)capacity);
        if (!requests) {
            error_set(err, "out of memory for %d requests", capacity);
            return NULL;
        }
        w->requests = requests;
        w->capacity = capacity;
    }
    w->requests[w->n] = (struct request){0};
    return &w->requests[w->n++];
}

/* ---- from a file ----------------------------------------------------------------------------- */

struct reading {
    struct workload *workload;
    const struct request *defaults;
    const struct workload_encoder *encoder;
    json_t *ids; /* an object: each id and where it was given */
};

static int add_stop(struct request *r, const json_t *text, const struct json_source *line) {
    const char *stop = json_string_value(text);
    if (!stop || !*stop || strlen(stop) != json_string_length(text))
        return json_refuse(line, "stop: must be a text that is not empty and has no NUL character, "
                                 "or a list of such");
    char **stops = realloc(r->stops, sizeof *stops * ((size_t)r->n_stops + 1));
    r->stops = stops ? stops : r->stops;
    if (!stops || !(stops[r->n_stops] = strdup(stop)))
        return error_set(line->err, "out of memory");
    r->n_stops++;
    return 0;
}

static int read_stops(struct request *r, const struct json_source *line) {
    const json_t *stop = json_field(line, "stop");
    int result = stop && !json_is_array(stop) ? add_stop(r, stop, line) : 0;
    for (size_t i = 0; !result && i < json_array_size(stop); i++)
        result = add_stop(r, json_array_get(stop, i), line);
    return result;
}

static int check_keys(const struct json_source *line) {
    static const char known[] =
        "id, prompt, messages, tools, max_new, arrival, temperature, top_k, top_p, seed, stop";
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)line->object, key, value) {
        const char *at = strstr(known, key);
        size_t n = strlen(key);
        if (!n || strchr(key, ',') || !at || (at > known && at[-1] != ' ') ||
            (at[n] && at[n] != ','))
            return json_refuse(line, "%s: unknown; known are %s", key, known);
    }
    return 0;
}

static int read_sampling(struct sampling_options *s, const struct json_source *line) {
    double temperature = s->temperature, top_p = s->top_p;
    const json_t *seed = json_field(line, "seed");
    if (json_get_double(line, "temperature", &temperature) ||
        json_get_double(line, "top_p", &top_p) ||
        json_get_int(line, "top_k", 0, INT32_MAX, &s->top_k))
        return -1;
    if (!(temperature >= 0 && temperature <= 1e30))
        return json_refuse(line, "temperature: must be a number from 0 to 1e30");
    if (!(top_p >= 0 && top_p <= 1))
        return json_refuse(line, "top_p: must be a number from 0 to 1");
    if (seed && (!json_is_integer(seed) || json_integer_value(seed) < 0))
        return json_refuse(line, "seed: must be a whole number from 0 to 2^63-1");
    s->seed = seed ? (uint64_t)json_integer_value(seed) : s->seed;
    s->has_seed = seed || s->has_seed;
    s->temperature = (float)temperature;
    s->top_p = (float)top_p;
    return 0;
}

/* The id of a line, NULL if it has none; no two lines may have the same. */
static int read_id(struct reading *reading, const struct json_source *line, const char **id) {
    *id = NULL;
    if (json_get_string(line, "id", id))
        return -1;
    if (!*id)
        return 0;
    const json_t *first = json_object_get(reading->ids, *id);
    if (!**id)
        return json_refuse(line, "id: must not be empty");
    if (first)
        return json_refuse(line, "id: \"%s\" is taken by %s", *id, json_string_value(first));
    if (json_object_set_new(reading->ids, *id, json_string_nocheck(line->where)))
        return json_refuse(line, "id: out of memory");
    return 0;
}

/* What a terminal takes for a command becomes spaces: C0, delete, and C1 (U+0080 to U+009F, two
 * bytes). */
static void blank_controls(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
            c[0] = c[1] = ' ';
        if (*c < ' ' || *c == 127)
            *c = ' ';
    }
}

/* The beginning of a prompt on one line, without what a terminal takes for a command. */
static char *make_title(const char *text) {
    enum { LENGTH = 24 };
    char *title = calloc(1, LENGTH + 4);
    size_t n = strcspn(text, "\n");
    if (!title)
        return NULL;
    bool cut = n > LENGTH;
    for (n = cut ? LENGTH : n; cut && n && ((unsigned char)text[n] & 0xc0) == 0x80;)
        n--; /* not within a character */
    memcpy(title, text, n);
    strcpy(title + n, cut ? "..." : "");
    blank_controls(title);
    return title;
}

static int read_prompt(struct request *r, const struct workload_encoder *encoder,
                       const struct json_source *line, const char *id) {
    const json_t *messages = json_field(line, "messages");
    const char *prompt = NULL;
    size_t n = 0;
    struct error why;
    if (json_get_string(line, "prompt", &prompt))
        return -1;
    if (!prompt == !messages)
        return json_refuse(line, "needs either prompt or messages");
    if (prompt && json_field(line, "tools"))
        return json_refuse(line, "tools: need messages");
    if (messages &&
        encoder->messages(encoder->context, line->object, line->where, &r->prompt, &n, line->err))
        return -1;
    if (prompt && encoder->prompt(encoder->context, prompt, &r->prompt, &n, &why))
        return json_refuse(line, "prompt: %s", why.text);
    if (n > INT32_MAX / 4)
        return json_refuse(line, "the prompt has too many tokens");
    r->n_prompt = (int)n;
    r->title = make_title(id ? id : prompt ? prompt : "(messages)");
    return r->title ? 0 : error_set(line->err, "out of memory");
}

static int read_object(struct reading *reading, const struct json_source *line) {
    const char *id;
    if (!json_is_object(line->object))
        return json_refuse(line, "must be a string or an object with prompt or messages");
    struct request *r = workload_add(reading->workload, line->err);
    if (!r)
        return -1;
    r->arrival = reading->defaults->arrival;
    r->max_new = reading->defaults->max_new;
    r->sampling = reading->defaults->sampling;
    if (check_keys(line) || read_id(reading, line, &id) ||
        json_get_int(line, "max_new", 1, 1 << 30, &r->max_new) ||
        json_get_double(line, "arrival", &r->arrival) || read_sampling(&r->sampling, line) ||
        read_stops(r, line))
        return -1;
    if (!(r->arrival >= 0 && r->arrival <= MOST_SECONDS))
        return json_refuse(line, "arrival: must be a number of seconds from 0 to 1e9");
    return read_prompt(r, reading->encoder, line, id);
}

/* A text alone is an object with nothing but a prompt. */
static int read_line(void *context, const struct json_source *line) {
    const json_t *value = line->object;
    json_t *object = json_is_string(value) ? json_pack("{sO}", "prompt", value) : NULL;
    struct json_source as_object = {object ? object : value, line->where, line->err};
    int result = read_object(context, &as_object);
    json_decref(object);
    return result;
}

/* By arrival; equal ones as they lie in the list. */
static int by_arrival(const void *x, const void *y) {
    const struct request *a = *(struct request *const *)x, *b = *(struct request *const *)y;
    if (a->arrival != b->arrival)
        return a->arrival < b->arrival ? -1 : 1;
    return (a > b) - (a < b);
}

static int sort_by_arrival(struct workload *w, struct error *err) {
    struct request **order = malloc(sizeof *order * (size_t)w->n);
    struct request *sorted = malloc(sizeof *sorted * (size_t)w->capacity);
    if (!order || !sorted) {
        free(order);
        free(sorted);
        return error_set(err, "out of memory for %d requests", w->n);
    }
    for (int i = 0; i < w->n; i++)
        order[i] = &w->requests[i];
    qsort(order, (size_t)w->n, sizeof *order, by_arrival);
    for (int i = 0; i < w->n; i++)
        sorted[i] = *order[i];
    free(order);
    free(w->requests);
    w->requests = sorted;
    return 0;
}

int workload_read(struct workload *w, const char *path, const struct request *defaults,
                  const struct workload_encoder *encoder, struct error *err) {
    struct reading reading = {w, defaults, encoder, json_object()};
    int before = w->n;
    int result = reading.ids ? json_for_each_line(path, read_line, &reading, err)
                             : error_set(err, "%s: out of memory", path);
    json_decref(reading.ids);
    if (!result && w->n == before)
        result = error_set(err, "%s: no prompts in it", path);
    return result ? -1 : sort_by_arrival(w, err);
}

/* ---- at random ------------------------------------------------------------------------------- */

/* Numbers from a counter: the same on every machine. */
struct counter {
    uint64_t seed;
    uint32_t next;
};

/* Uniform in [0, 1), a multiple of 2^-53. */
static double uniform(struct counter *c) {
    return (double)num_draw(c->seed, 0, c->next++, (uint64_t)1 << 53) * 0x1p-53;
}

/* Exponential with mean 1, by comparisons alone (von Neumann, "Various techniques used in
 * connection with random digits", 1951): no logarithm, whose last bit libraries do not agree on. */
static double exponential(struct counter *c) {
    for (double whole = 0;; whole++) {
        double first = uniform(c), last = first;
        for (int run = 1;; run++) {
            double u = uniform(c);
            if (u >= last) {
                if (run % 2)
                    return whole + first;
                break;
            }
            last = u;
        }
    }
}

/* About normal: the sum of twelve uniform numbers. */
static double normal(struct counter *c) {
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += uniform(c);
    return sum;
}

static int length(struct counter *c, double median, double sigma, int most) {
    double n = median * (double)num_exp((float)(sigma * normal(c)));
    return n < 1 ? 1 : n > most ? most : (int)n;
}

int workload_random(struct workload *w, int n, const struct workload_mix *mix, int vocab_size,
                    const struct sampling_options *sampling, uint64_t seed, struct error *err) {
    struct counter c = {seed, 0};
    double time = 0;
    for (int i = 0; i < n; i++) {
        struct request *r = workload_add(w, err);
        if (!r)
            return -1;
        if (mix->requests_per_second > 0)
            time += exponential(&c) / mix->requests_per_second;
        if (time > MOST_SECONDS)
            return error_set(err,
                             "at %g requests per second, random request %d comes after %g seconds: "
                             "raise the rate",
                             mix->requests_per_second, i, MOST_SECONDS);
        r->arrival = time;
        r->sampling = *sampling;
        r->max_new = length(&c, mix->answer_median, mix->answer_sigma, mix->most_answer);
        r->n_prompt = length(&c, mix->prompt_median, mix->prompt_sigma, mix->most_prompt);
        r->prompt = malloc(sizeof *r->prompt * (size_t)r->n_prompt);
        r->title = make_title("(random)");
        if (!r->prompt || !r->title)
            return error_set(err, "out of memory for a prompt of %d tokens", r->n_prompt);
        for (int j = 0; j < r->n_prompt; j++)
            r->prompt[j] = (int32_t)num_draw(seed, 1, c.next++, (uint64_t)vocab_size);
    }
    return 0;
}

int workload_fork(struct workload *w, int n, struct error *err) {
    size_t n_all = (size_t)w->n * (size_t)n;
    struct request *all = calloc(n_all + 1, sizeof *all);
    if (n_all > INT32_MAX || !all) {
        free(all);
        return error_set(err, "out of memory for %d samples of %d requests", n, w->n);
    }
    for (int i = 0; i < (int)n_all; i++) {
        all[i] = w->requests[i / n];
        all[i].fork_back = i % n;
        all[i].sampling.sample = (uint32_t)(i % n);
    }
    free(w->requests);
    *w = (struct workload){.requests = all, .n = (int)n_all, .capacity = (int)n_all};
    return 0;
}
