#include "tutorials/common/requests.h"

enum { QUICK_ANSWER = 8 };

static int min_int(int a, int b) {
    return a < b ? a : b;
}

static int encode_prompt(void *context, const char *text, int32_t **ids, size_t *n,
                         struct error *err) {
    return demo_encode_prompt(context, text, ids, n, err);
}

static int encode_messages(void *context, const json_t *line, const char *where, int32_t **ids,
                           size_t *n, struct error *err) {
    struct error why;
    return demo_encode_messages(context, line, where, ids, n, &why) ? error_set(err, "%s", why.text)
                                                                    : 0;
}

int demo_read_requests(const struct demo *demo, const char *path, struct workload *w,
                       struct error *err) {
    struct request defaults = {.max_new = demo->options.max_new,
                               .sampling = demo->options.sampling};
    struct workload_encoder encoder = {encode_prompt, encode_messages, (void *)demo};
    int result = workload_read(w, path, &defaults, &encoder, err);
    for (int i = 0; demo->options.quick && i < w->n; i++)
        w->requests[i].max_new = min_int(w->requests[i].max_new, QUICK_ANSWER);
    return result;
}

int demo_check_untimed(const struct workload *w, const char *path, struct error *err) {
    for (int i = 0; i < w->n; i++)
        if (w->requests[i].n_stops || w->requests[i].arrival > 0)
            return error_set(err, "%s: \"%s\" has %s: make phase3 builds a demo for that", path,
                             w->requests[i].title, w->requests[i].n_stops ? "stop" : "an arrival");
    return 0;
}

int demo_draw_requests(const struct demo *demo, struct workload *w, struct error *err) {
    const struct options *o = &demo->options;
    struct workload_mix mix = o->mix == MIX_SHORT ? workload_short : workload_sharegpt;
    int context = demo->generator.context;
    mix.requests_per_second = (double)o->rate;
    mix.most_prompt = min_int(mix.most_prompt, context / 2);
    mix.most_answer = min_int(mix.most_answer, context - mix.most_prompt);
    if (o->longest)
        mix.most_answer = min_int(mix.most_answer, o->longest);
    return workload_random(w, o->random, &mix, tokenizer_vocab_size(demo->tokenizer), &o->sampling,
                           o->sampling.seed, err);
}
