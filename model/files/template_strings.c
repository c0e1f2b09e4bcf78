/* Strings: their methods, the filters that are about strings alone, and the methods of dicts. */
#include "model/files/template_internal.h"

#include <utf8proc.h>

/* ---- upper and lower case ------------------------------------------------------------------- */

enum letters { UPPER, LOWER, CAPITALIZED, TITLE_METHOD, TITLE_FILTER };

static bool is_cased(int32_t c) {
    utf8proc_category_t category = utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT || utf8proc_toupper(c) != c || utf8proc_tolower(c) != c;
}

/* A character with a case that Python changes to several, or by what stands around it; or a small
 * raised letter, which counts as a letter with a case in title() alone. */
static bool is_special(int32_t c, enum letters letters) {
    utf8proc_int32_t folded[8];
    int class = 0;
    bool raised = c == 0xaa || c == 0xba || utf8proc_category(c) == UTF8PROC_CATEGORY_LM;
    return c >= 128 && ((letters == TITLE_METHOD && raised) || c == 0x3a3 ||
                        utf8proc_decompose_char(c, folded, 8, UTF8PROC_CASEFOLD, &class) != 1);
}

/* Text with other letters. `begins` holds before the first character of a word. */
static struct value with_letters(struct run *r, struct text t, enum letters letters) {
    struct buffer out = {.work = &r->work};
    bool begins = true;
    for (size_t n = 0; t.n && tmpl_spend(r, 0); t = (struct text){t.data + n, t.n - n}) {
        utf8proc_uint8_t utf8[4];
        int32_t c;
        n = tmpl_char(t, &c);
        bool valid = n > 1 || c < 128;
        if (valid && is_special(c, letters))
            tmpl_fail(&r->work, "the case of %.*s is not supported", (int)n, t.data);
        bool raised = letters == UPPER || (letters != LOWER && begins);
        int32_t to = !raised                                       ? utf8proc_tolower(c)
                     : letters == UPPER || letters == TITLE_FILTER ? utf8proc_toupper(c)
                                                                   : utf8proc_totitle(c);
        begins = letters == TITLE_METHOD
                     ? !is_cased(c)
                     : letters == TITLE_FILTER &&
                           (tmpl_is_space(c) || (c < 128 && c && strchr("-({[<", c)));
        tmpl_add(&out, valid ? (struct text){(char *)utf8, (size_t)utf8proc_encode_char(to, utf8)}
                             : (struct text){t.data, n});
    }
    return tmpl_string(tmpl_buffer_text(&out));
}

struct value tmpl_lower(struct run *r, struct text t) {
    return with_letters(r, t, LOWER);
}

/* As methods, self is a string; as filters, anything that can be written. */
static struct value string_upper(struct call *c) {
    return with_letters(c->run, tmpl_str(c->run, c->self), UPPER);
}
static struct value string_lower(struct call *c) {
    return with_letters(c->run, tmpl_str(c->run, c->self), LOWER);
}
static struct value string_capitalize(struct call *c) {
    return with_letters(c->run, tmpl_str(c->run, c->self), CAPITALIZED);
}
static struct value string_title(struct call *c) {
    return with_letters(c->run, tmpl_str(c->run, c->self), TITLE_METHOD);
}
static struct value filter_title(struct call *c) {
    return with_letters(c->run, tmpl_str(c->run, c->self), TITLE_FILTER);
}

/* ---- strip, split, replace ------------------------------------------------------------------ */

static struct value strip(struct call *c, bool left, bool right) {
    struct text t = tmpl_str(c->run, c->self), set = {NULL, 0};
    if (c->arg[0].kind != V_NONE)
        set = tmpl_text_arg(c, 0, set);
    return tmpl_string(tmpl_spend(c->run, t.n) ? tmpl_strip(t, set, left, right) : t);
}

static struct value string_strip(struct call *c) {
    return strip(c, true, true);
}
static struct value string_lstrip(struct call *c) {
    return strip(c, true, false);
}
static struct value string_rstrip(struct call *c) {
    return strip(c, false, true);
}

/* Where `what` begins in t, or t.n. */
static size_t find(struct text t, struct text what) {
    const char *found = memmem(t.data, t.n, what.data, what.n);
    return found ? (size_t)(found - t.data) : t.n;
}

/* The first run of white space in t: where it begins and its length; t.n and 0 when there is none.
 */
static size_t find_space(struct text t, size_t *length) {
    int32_t c;
    size_t at = 0, n;
    for (; at < t.n; at += n) {
        n = tmpl_char((struct text){t.data + at, t.n - at}, &c);
        if (tmpl_is_space(c))
            break;
    }
    struct text rest = {t.data + at, t.n - at};
    *length = rest.n - tmpl_strip(rest, (struct text){NULL, 0}, true, false).n;
    return at;
}

static struct value string_split(struct call *c) {
    struct value out = tmpl_new_list(c->run, V_LIST, 0);
    struct text rest = c->self.as.text, by = {NULL, 0};
    int64_t left = tmpl_integer_arg(c, 1, -1);
    bool by_space = c->arg[0].kind == V_ABSENT || c->arg[0].kind == V_NONE;
    if (by_space)
        rest = tmpl_strip(rest, by, true, false);
    else
        by = tmpl_text_arg(c, 0, by);
    if (!by_space && by.n == 0)
        tmpl_fail(&c->run->work, "split: the separator is empty");
    while (tmpl_spend(c->run, 0)) {
        size_t length = by.n, at = by_space ? find_space(rest, &length) : find(rest, by);
        if (at == rest.n || left == 0) {
            if (rest.n || !by_space)
                tmpl_append(c->run, out.as.list, tmpl_string(rest));
            break;
        }
        tmpl_append(c->run, out.as.list, tmpl_string((struct text){rest.data, at}));
        rest = (struct text){rest.data + at + length, rest.n - at - length};
        left -= left > 0;
    }
    tmpl_spend(c->run, c->self.as.text.n);
    return out;
}

static struct value replace(struct run *r, struct text t, struct text old, struct text with,
                            int64_t count) {
    struct buffer out = {.work = &r->work};
    bool first = true;
    for (; count != 0 && tmpl_spend(r, 0); count -= count > 0) {
        size_t at = find(t, old);
        int32_t c;
        if (!old.n && !first) /* between all characters, and at both ends */
            at = t.n ? tmpl_char(t, &c) : 0;
        if ((old.n && at == t.n) || (!old.n && !first && !t.n))
            break;
        tmpl_add(&out, (struct text){t.data, at});
        tmpl_add(&out, with);
        t = (struct text){t.data + at + old.n, t.n - at - old.n};
        first = false;
    }
    tmpl_add(&out, t);
    tmpl_spend(r, out.n);
    return tmpl_string(tmpl_buffer_text(&out));
}

static struct value string_replace(struct call *c) {
    struct text none = {"", 0};
    return replace(c->run, c->self.as.text, tmpl_text_arg(c, 0, none), tmpl_text_arg(c, 1, none),
                   tmpl_integer_arg(c, 2, -1));
}

static struct value filter_replace(struct call *c) {
    int64_t count = c->arg[2].kind == V_NONE ? -1 : tmpl_integer_arg(c, 2, -1);
    return replace(c->run, tmpl_str(c->run, c->self), tmpl_str(c->run, c->arg[0]),
                   tmpl_str(c->run, c->arg[1]), count);
}

/* ---- what is in it -------------------------------------------------------------------------- */

static struct value string_startswith(struct call *c) {
    struct text t = c->self.as.text, with = tmpl_text_arg(c, 0, (struct text){"", 0});
    return tmpl_boolean(tmpl_spend(c->run, with.n) && with.n <= t.n &&
                        tmpl_same_text((struct text){t.data, with.n}, with));
}

static struct value string_endswith(struct call *c) {
    struct text t = c->self.as.text, with = tmpl_text_arg(c, 0, (struct text){"", 0});
    return tmpl_boolean(tmpl_spend(c->run, with.n) && with.n <= t.n &&
                        tmpl_same_text((struct text){t.data + t.n - with.n, with.n}, with));
}

static struct value string_find(struct call *c) {
    struct text t = c->self.as.text, what = tmpl_text_arg(c, 0, (struct text){"", 0});
    size_t at = tmpl_spend(c->run, t.n) ? find(t, what) : 0;
    bool found = at < t.n || !what.n;
    return tmpl_integer(found ? (int64_t)tmpl_length((struct text){t.data, at}) : -1);
}

/* between.join(strings) */
static struct value string_join(struct call *c) {
    struct buffer out = {.work = &c->run->work};
    struct list *items = tmpl_items_of(c->run, c->arg[0]);
    for (size_t i = 0; items && i < items->n && tmpl_spend(c->run, 0); i++) {
        struct value v = items->items[i];
        if (v.kind != V_STRING)
            tmpl_fail(&c->run->work, "join: %s is no string", tmpl_kind_name(v.kind));
        if (i)
            tmpl_add(&out, c->self.as.text);
        tmpl_write_str(c->run, &out, v);
    }
    return tmpl_string(tmpl_buffer_text(&out));
}

const struct builtin *tmpl_find_string_method(struct text name) {
    static const struct builtin table[] = {{"capitalize", "", 0, string_capitalize},
                                           {"endswith", "suffix", 1, string_endswith},
                                           {"find", "sub", 1, string_find},
                                           {"join", "iterable", 1, string_join},
                                           {"lower", "", 0, string_lower},
                                           {"lstrip", "chars", 0, string_lstrip},
                                           {"replace", "old new count", 2, string_replace},
                                           {"rstrip", "chars", 0, string_rstrip},
                                           {"split", "sep maxsplit", 0, string_split},
                                           {"startswith", "prefix", 1, string_startswith},
                                           {"strip", "chars", 0, string_strip},
                                           {"title", "", 0, string_title},
                                           {"upper", "", 0, string_upper},
                                           {0}};
    return tmpl_find_builtin(table, name);
}

const struct builtin *tmpl_find_string_filter(struct text name) {
    static const struct builtin table[] = {{"capitalize", "", 0, string_capitalize},
                                           {"lower", "", 0, string_lower},
                                           {"replace", "old new count", 2, filter_replace},
                                           {"title", "", 0, filter_title},
                                           {"trim", "chars", 0, string_strip},
                                           {"upper", "", 0, string_upper},
                                           {0}};
    return tmpl_find_builtin(table, name);
}

/* ---- dicts ---------------------------------------------------------------------------------- */

static struct value dict_get(struct call *c) {
    struct value key = c->arg[0], *found = NULL;
    if (key.kind >= V_LIST) /* no key, or maybe none */
        tmpl_fail(&c->run->work, "get: %s is no key", tmpl_kind_name(key.kind));
    if (key.kind == V_STRING && tmpl_spend(c->run, c->self.as.dict->n))
        found = tmpl_find(c->self.as.dict, key.as.text);
    struct value other = c->arg[1].kind == V_ABSENT ? (struct value){V_NONE, {0}} : c->arg[1];
    return found ? *found : other;
}

static struct value view(struct call *c, bool keys, bool values) {
    const struct dict *d = c->self.as.dict;
    struct value out = tmpl_new_list(c->run, V_VIEW, d->n);
    for (size_t i = 0; i < d->n && !c->run->work.failed; i++) {
        struct value key = tmpl_string(d->keys[i]);
        tmpl_append(c->run, out.as.list,
                    keys && values ? tmpl_pair(c->run, key, d->values[i])
                    : keys         ? key
                                   : d->values[i]);
    }
    return out;
}

static struct value dict_items(struct call *c) {
    return view(c, true, true);
}
static struct value dict_keys(struct call *c) {
    return view(c, true, false);
}
static struct value dict_values(struct call *c) {
    return view(c, false, true);
}

const struct builtin *tmpl_find_dict_method(struct text name) {
    static const struct builtin table[] = {{"get", "key default", 1, dict_get},
                                           {"items", "", 0, dict_items},
                                           {"keys", "", 0, dict_keys},
                                           {"values", "", 0, dict_values},
                                           {0}};
    return tmpl_find_builtin(table, name);
}
