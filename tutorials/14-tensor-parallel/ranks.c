/* Before the model is loaded: the ranks meet, and compare what must be the same on all. */
#include "tutorials/14-tensor-parallel/ranks.h"

#include "model/files/folder.h"
#include "model/parallel/mpi.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

int ranks_join(struct demo *demo, struct error *err) {
    if (!mpi_is_launched())
        return 0;
    demo->parallel = mpi_join(err);
    return demo->parallel ? 0 : -1;
}

/* ---- hashes ---------------------------------------------------------------------------------- */

static int hash_file(XXH3_state_t *hash, const char *path, struct error *err) {
    char piece[1 << 16];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (!f)
        return error_set(err, "%s: cannot be read", path);
    while ((n = fread(piece, 1, sizeof piece, f)) > 0)
        XXH3_64bits_update(hash, piece, n);
    fclose(f);
    return 0;
}

/* Files that say what the model is. */
static int is_of_model(const struct dirent *entry) {
    static const char *const ends[] = {".json", ".safetensors", ".jinja"};
    size_t n = strlen(entry->d_name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && !strcmp(entry->d_name + n - strlen(ends[i]), ends[i]))
            return 1;
    return 0;
}

/* Names and contents of the folder's files. */
static int hash_folder(XXH3_state_t *hash, const char *folder, struct error *err) {
    struct dirent **files = NULL;
    char path[PATH_MAX];
    int result = 0, n = scandir(folder, &files, is_of_model, alphasort);
    for (int i = 0; i < n; i++) {
        XXH3_64bits_update(hash, files[i]->d_name, strlen(files[i]->d_name) + 1);
        if (!result)
            result = model_folder_path(path, sizeof path, folder, files[i]->d_name, err) ||
                     hash_file(hash, path, err);
        free(files[i]);
    }
    free(files);
    return n < 0 ? error_set(err, "%s: cannot be read", folder) : result;
}

static void hash_words(XXH3_state_t *hash, char **argv) {
    for (int i = 1; argv[i]; i++)
        XXH3_64bits_update(hash, argv[i], strlen(argv[i]) + 1);
}

/* ---- the comparison -------------------------------------------------------------------------- */

static int compare(struct demo *demo, char **argv, struct error *err) {
    XXH3_state_t *hash = XXH3_createState();
    struct parallel *p = demo->parallel;
    if (!hash)
        return error_set(err, "out of memory");
    XXH3_64bits_reset(hash);
    int result = hash_file(hash, "/proc/self/exe", err) ||
                 parallel_check_same(p, XXH3_64bits_digest(hash), "another program", err);
    XXH3_64bits_reset(hash);
    hash_words(hash, argv);
    result = result || parallel_check_same(p, XXH3_64bits_digest(hash), "other options", err);
    XXH3_64bits_reset(hash);
    result = result || model_folder_check(demo->options.model, err) ||
             hash_folder(hash, demo->options.model, err) ||
             parallel_check_same(p, XXH3_64bits_digest(hash), "other files of the model", err);
    XXH3_freeState(hash);
    return result ? -1 : 0;
}

/* A block of the pool has a tile of each rank (context_parallel.h). */
static int share_positions(struct parallel *p, struct options *o, struct error *err) {
    if (!o->context_parallel)
        return 0;
    if (o->block_size != DEFAULT_BLOCK_SIZE)
        return error_set(err, "--context-parallel chooses the blocks: leave out --block-size");
    p->by_position = true;
    o->block_size = ATTENTION_TILE * p->n_ranks;
    return 0;
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

static int count_gpus_of_host(void) {
    int n = 0;
    DIR *folder = opendir("/proc/driver/nvidia/gpus");
    for (const struct dirent *e; folder && (e = readdir(folder));)
        n += e->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return n;
}

/* Rank r of a host sees GPU r of those that it may use, before anybody asks what there is; or ranks
 * share GPUs. */
static void choose_gpu(struct parallel *p) {
    static const char variable[] = "CUDA_VISIBLE_DEVICES";
    const char *allowed = getenv(variable), *at = allowed ? allowed : "";
    char number[80];
    int n = allowed ? 1 : count_gpus_of_host();
    for (const char *c = at; (c = strchr(c, ',')); c++)
        n++;
    if (n < 2)
        return;
    p->n_sharing = (p->n_neighbours + n - 1) / n;
    for (int i = p->neighbour % n; allowed && i > 0; i--)
        at = strchr(at, ',') + 1;
    if (allowed)
        snprintf(number, sizeof number, "%.*s", (int)strcspn(at, ","), at);
    else
        snprintf(number, sizeof number, "%d", p->neighbour % n);
    setenv(variable, number, 1);
}

bool ranks_have_gpus(const struct demo *demo) {
    struct parallel *p = demo->parallel;
    const char *device = demo->dev->ops->name;
    if (!strcmp(device, "cpu"))
        p->n_sharing = p->n_neighbours;
    else if (!strcmp(device, "emu")) /* each process emulates one of its own */
        p->n_sharing = 1;
    return !strcmp(device, "gpu") && p->n_sharing == 1;
}

int ranks_agree(struct demo *demo, char **argv, struct error *err) {
    struct options *o = &demo->options;
    struct parallel *p = demo->parallel;
    if (!p)
        return o->ranks > 1 ? mpi_launch(o->ranks, argv, err) : 0;
    if (o->verify)
        return error_set(err, "--verify compares whole tensors, and ranks have parts: leave out "
                              "mpirun");
    if (o->ranks && o->ranks != p->n_ranks)
        return error_set(err, "--ranks %d: mpirun has started %d", o->ranks, p->n_ranks);
    choose_gpu(p);
    if (p->limit < (double)o->patience)
        p->limit = o->patience;
    if (compare(demo, argv, err) || share_positions(p, o, err))
        return -1;
    int n_cores = (int)sysconf(_SC_NPROCESSORS_ONLN) / p->n_neighbours;
    if (!o->threads)
        o->threads = n_cores > 1 ? n_cores : 1;
    if (p->rank) /* rank 0 writes the files */
        o->json = o->trace = o->dump_logits = o->html = o->receipt = NULL;
    return 0;
}
