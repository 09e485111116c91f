/*
 * Stand-ins for librados and librbd, for tests: the functions that extant uses, over files in a directory.
 *
 * Compiled twice: with RADOS and with RBD. What a real cluster would do is decided by options, which come with the address:
 *
 *   fake_dir      the pools, one directory each; an image is a file there, IMAGE@SNAP a snapshot, IMAGE.lock its lock
 *   fake_control  a file of words NAME=NUMBER, which is read at each request:
 *                   fail_read, fail_write, fail_flush, fail_discard, fail_zero, fail_open, fail_lock: errno
 *                   start: requests are refused with this errno, without a completion
 *                   stall: requests are not completed while it is there
 *                   delay: milliseconds before a request is completed
 *                   less, more: so many bytes fewer or more are said to have moved
 *                   size: the size of the image now
 *   fake_log      a file that gets one line for each request: what, offset, length, how many are under way
 *   fake_connect  errno of the connection
 *   fake_features features of images; 4, which is exclusive-lock, without it
 *
 * Writes are in memory until a flush, or until the image is closed: a process that is killed has lost the rest.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPTIONS 64
#define SECTOR 512

struct cluster {
    int count;
    char names[OPTIONS][64];
    char values[OPTIONS][1024];
};

struct pool {
    struct cluster *cluster;
    char name[256];
    char space[256];
};

static const char *option(struct cluster *cluster, const char *name)
{
    for (int i = 0; i < cluster->count; i++)
        if (strcmp(cluster->names[i], name) == 0)
            return cluster->values[i];
    if (strcmp(name, "rados_osd_op_timeout") == 0 || strcmp(name, "rados_mon_op_timeout") == 0)
        return "0";
    if (strcmp(name, "client_mount_timeout") == 0)
        return "300";
    if (strcmp(name, "mon_host") == 0)
        return "";
    return NULL;
}

#ifdef RADOS

static int set(struct cluster *cluster, const char *name, const char *value)
{
    int i = 0;
    while (i < cluster->count && strcmp(cluster->names[i], name) != 0)
        i++;
    if (i == OPTIONS)
        return -ENOMEM;
    if (i == cluster->count)
        cluster->count++;
    snprintf(cluster->names[i], sizeof cluster->names[i], "%s", name);
    snprintf(cluster->values[i], sizeof cluster->values[i], "%s", value);
    return 0;
}

int rados_create(void **out, const char *id)
{
    struct cluster *cluster = calloc(1, sizeof *cluster);
    set(cluster, "id", id);
    *out = cluster;
    return 0;
}

int rados_conf_read_file(void *cluster, const char *path)
{
    char line[2048], name[64], value[1024];
    if (path == NULL)
        path = getenv("CEPH_CONF");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file == NULL)
        return -ENOENT;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, " %63[^= ] = %1023s", name, value) == 2)
            set(cluster, name, value);
    fclose(file);
    return 0;
}

int rados_conf_parse_env(void *cluster, const char *variable)
{
    const char *args = getenv(variable ? variable : "CEPH_ARGS");
    char name[64], value[1024];
    if (args && sscanf(args, "--%63[^=]=%1023s", name, value) == 2)
        set(cluster, name, value);
    return 0;
}

int rados_conf_set(void *cluster, const char *name, const char *value)
{
    return strncmp(name, "unknown", 7) == 0 ? -ENOENT : set(cluster, name, value);
}

int rados_conf_get(void *cluster, const char *name, char *value, size_t len)
{
    const char *found = option(cluster, name);
    if (found == NULL)
        return -ENOENT;
    if (strlen(found) >= len)
        return -ENAMETOOLONG;
    strcpy(value, found);
    return 0;
}

int rados_connect(void *cluster)
{
    const char *error = option(cluster, "fake_connect");
    if (error)
        return -atoi(error);
    return option(cluster, "fake_dir") ? 0 : -ENOENT;
}

void rados_shutdown(void *cluster)
{
    free(cluster);
}

int rados_cluster_fsid(void *cluster, char *fsid, size_t len)
{
    (void)cluster;
    return snprintf(fsid, len, "11111111-2222-3333-4444-555555555555");
}

int rados_ioctx_create(void *cluster, const char *name, void **out)
{
    char path[2048];
    struct stat found;
    snprintf(path, sizeof path, "%s/%s", option(cluster, "fake_dir"), name);
    if (stat(path, &found) < 0)
        return -ENOENT;
    struct pool *pool = calloc(1, sizeof *pool);
    pool->cluster = cluster;
    snprintf(pool->name, sizeof pool->name, "%s", name);
    *out = pool;
    return 0;
}

void rados_ioctx_set_namespace(void *pool, const char *space)
{
    snprintf(((struct pool *)pool)->space, 256, "%s", space);
}

void rados_ioctx_destroy(void *pool)
{
    free(pool);
}

#endif
#ifdef RBD

struct image {
    struct pool *pool;
    char path[2048];
    char owner[64];
    int read_only, locked;
    uint64_t bytes;
    unsigned char *memory, *dirty;
    pthread_mutex_t mutex;
    pthread_cond_t landed;
    /* Requests that have to be waited for, and those whose completion is yet to be told. */
    int aloft, untold;
};

enum what { READ, WRITE, FLUSH, DISCARD, ZERO };
static const char *const names[] = { "read", "write", "flush", "discard", "zero" };

struct request {
    struct image *image;
    enum what what;
    uint64_t offset, len;
    char *bytes;
    struct completion *completion;
};

struct completion {
    void (*callback)(void *, void *);
    void *arg;
    ssize_t result;
};

static int control(struct image *image, const char *word, long long *value)
{
    const char *path = option(image->pool->cluster, "fake_control");
    char name[64];
    long long number;
    FILE *file = path ? fopen(path, "r") : NULL;
    int found = 0;
    if (file == NULL)
        return 0;
    while (!found && fscanf(file, " %63[^=]=%lld", name, &number) == 2)
        found = strcmp(name, word) == 0;
    fclose(file);
    if (found && value)
        *value = number;
    return found;
}

static uint64_t size_of(struct image *image)
{
    long long size;
    return control(image, "size", &size) ? (uint64_t)size : image->bytes;
}

static void store(struct image *image)
{
    int file = open(image->path, O_WRONLY);
    for (uint64_t at = 0; at < image->bytes; at += SECTOR)
        if (image->dirty[at / SECTOR]) {
            uint64_t len = image->bytes - at < SECTOR ? image->bytes - at : SECTOR;
            if (pwrite(file, image->memory + at, len, at) != (ssize_t)len)
                abort();
            image->dirty[at / SECTOR] = 0;
        }
    close(file);
}

static ssize_t run(struct request *request)
{
    struct image *image = request->image;
    char word[32];
    long long value;
    while (control(image, "stall", NULL))
        usleep(2000);
    if (control(image, "delay", &value))
        usleep(value * 1000);
    if (control(image, "late_before", &value) && request->offset < (uint64_t)value)
        usleep(300000);
    uint64_t size = size_of(image);
    if (size > image->bytes)
        size = image->bytes;
    snprintf(word, sizeof word, "fail_%s", names[request->what]);
    if (control(image, word, &value))
        return -value;
    if (request->what == FLUSH) {
        pthread_mutex_lock(&image->mutex);
        store(image);
        pthread_mutex_unlock(&image->mutex);
        return 0;
    }
    if (image->read_only && request->what != READ)
        return -EROFS;
    if (request->offset > size)
        return -EINVAL;
    uint64_t len = request->len < size - request->offset ? request->len : size - request->offset;
    unsigned char *at = image->memory + request->offset;
    pthread_mutex_lock(&image->mutex);
    if (request->what == READ)
        memcpy(request->bytes, at, len);
    else if (request->what == WRITE)
        memcpy(at, request->bytes, len);
    else
        memset(at, 0, len);
    if (request->what != READ && len > 0)
        memset(image->dirty + request->offset / SECTOR, 1,
               (request->offset + len - 1) / SECTOR - request->offset / SECTOR + 1);
    pthread_mutex_unlock(&image->mutex);
    ssize_t moved = request->what == READ ? (ssize_t)len : 0;
    if (control(image, "less", &value))
        moved = (ssize_t)len - value;
    if (control(image, "more", &value))
        moved = (ssize_t)len + value;
    return moved;
}

static void *thread(void *arg)
{
    struct request *request = arg;
    struct image *image = request->image;
    struct completion *completion = request->completion;
    completion->result = run(request);
    free(request);
    pthread_mutex_lock(&image->mutex);
    image->untold--;
    pthread_mutex_unlock(&image->mutex);
    completion->callback(completion, completion->arg);
    pthread_mutex_lock(&image->mutex);
    image->aloft--;
    pthread_cond_broadcast(&image->landed);
    pthread_mutex_unlock(&image->mutex);
    return NULL;
}

static int start(struct image *image, enum what what, uint64_t offset, uint64_t len, char *bytes,
                 void *completion)
{
    const char *path = option(image->pool->cluster, "fake_log");
    long long value;
    pthread_t id;
    if (control(image, "start", &value))
        return -value;
    struct request *request = malloc(sizeof *request);
    *request = (struct request){ image, what, offset, len, bytes, completion };
    pthread_mutex_lock(&image->mutex);
    image->aloft++;
    image->untold++;
    if (path) {
        FILE *log = fopen(path, "a");
        fprintf(log, "%s %llu %llu %d\n", names[what], (unsigned long long)offset,
                (unsigned long long)len, image->untold);
        fclose(log);
    }
    pthread_mutex_unlock(&image->mutex);
    if (pthread_create(&id, NULL, thread, request) != 0)
        abort();
    pthread_detach(id);
    return 0;
}

static int open_image(struct pool *pool, const char *name, void **out, const char *snapshot,
                      int read_only)
{
    struct image *image = calloc(1, sizeof *image);
    long long value;
    int length = snprintf(image->path, sizeof image->path, "%s/%s%s%s/%s",
                          option(pool->cluster, "fake_dir"), pool->name, pool->space[0] ? "/" : "",
                          pool->space, name);
    image->pool = pool;
    image->read_only = read_only || snapshot;
    if (control(image, "fail_open", &value)) {
        free(image);
        return -value;
    }
    if (snapshot)
        snprintf(image->path + length, sizeof image->path - length, "@%s", snapshot);
    int file = open(image->path, O_RDONLY);
    struct stat found;
    if (file < 0 || fstat(file, &found) < 0) {
        free(image);
        return -ENOENT;
    }
    image->bytes = found.st_size;
    image->memory = malloc(image->bytes + 1);
    image->dirty = calloc(image->bytes / SECTOR + 1, 1);
    if (pread(file, image->memory, image->bytes, 0) != (ssize_t)image->bytes)
        abort();
    close(file);
    pthread_mutex_init(&image->mutex, NULL);
    pthread_cond_init(&image->landed, NULL);
    *out = image;
    return 0;
}

int rbd_open(void *pool, const char *name, void **out, const char *snapshot)
{
    return open_image(pool, name, out, snapshot, 0);
}

int rbd_open_read_only(void *pool, const char *name, void **out, const char *snapshot)
{
    return open_image(pool, name, out, snapshot, 1);
}

static void lock_path(struct image *image, char *path, size_t len)
{
    snprintf(path, len, "%s.lock", image->path);
}

int rbd_close(void *arg)
{
    struct image *image = arg;
    char path[2100];
    pthread_mutex_lock(&image->mutex);
    while (image->aloft > 0)
        pthread_cond_wait(&image->landed, &image->mutex);
    if (!image->read_only && !control(image, "fail_flush", NULL))
        store(image);
    pthread_mutex_unlock(&image->mutex);
    if (image->locked) {
        lock_path(image, path, sizeof path);
        unlink(path);
    }
    free(image->memory);
    free(image->dirty);
    free(image);
    return 0;
}

int rbd_get_size(void *image, uint64_t *size)
{
    *size = size_of(image);
    return 0;
}

int rbd_get_features(void *arg, uint64_t *features)
{
    struct image *image = arg;
    const char *told = option(image->pool->cluster, "fake_features");
    *features = told ? strtoull(told, NULL, 10) : 4;
    return 0;
}

int rbd_get_id(void *arg, char *id, size_t len)
{
    struct image *image = arg;
    struct stat found;
    if (stat(image->path, &found) < 0)
        return -errno;
    snprintf(id, len, "%llx", (unsigned long long)found.st_ino);
    return 0;
}

int rbd_snap_get_id(void *image, const char *name, uint64_t *id)
{
    (void)image;
    *id = 40 + strlen(name);
    return 0;
}

/* Whether there is one. The locks of the dead are removed: the real library does so when it takes the lock. */
static int holder(struct image *image, char *client, char *place)
{
    char path[2100];
    lock_path(image, path, sizeof path);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    int pid = fscanf(file, "%63s %63s", client, place) == 2 ? atoi(client + 7) : 0;
    fclose(file);
    /* The watch of a client ends with it. */
    if (pid > 0 && kill(pid, 0) == 0)
        return 1;
    unlink(path);
    return 0;
}

int rbd_lock_acquire(void *arg, int mode)
{
    struct image *image = arg;
    char path[2100], client[64], place[64];
    long long value;
    static int number;
    if (mode != 0)
        return -EOPNOTSUPP;
    if (control(image, "fail_lock", &value))
        return -value;
    if (image->locked)
        return 0;
    lock_path(image, path, sizeof path);
    if (holder(image, client, place)) {
        /* One that was put there by hand stays; a client that is asked hands it over. */
        if (strncmp(place, "hand", 4) == 0)
            return -EBUSY;
        unlink(path);
    }
    snprintf(image->owner, sizeof image->owner, "client.%d", (int)getpid());
    FILE *file = fopen(path, "wx");
    if (file == NULL)
        return -EROFS;
    fprintf(file, "%s 127.0.0.1:0/%d\n", image->owner, __sync_add_and_fetch(&number, 1));
    fclose(file);
    image->locked = 1;
    return 0;
}

int rbd_is_exclusive_lock_owner(void *image, int *is_owner)
{
    *is_owner = ((struct image *)image)->locked;
    return 0;
}

ssize_t rbd_list_lockers(void *image, int *exclusive, char *tag, size_t *tag_len, char *clients,
                         size_t *clients_len, char *cookies, size_t *cookies_len, char *places,
                         size_t *places_len)
{
    char client[64], place[64];
    if (!holder(image, client, place))
        return 0;
    /* As long as a real one's, so that the first question is too short. */
    if (*clients_len < 1000) {
        *tag_len = *clients_len = *cookies_len = *places_len = 1000;
        return -ERANGE;
    }
    *exclusive = 1;
    *tag_len = snprintf(tag, *tag_len, "internal") + 1;
    *clients_len = snprintf(clients, *clients_len, "%s", client) + 1;
    *cookies_len = snprintf(cookies, *cookies_len, "auto 1") + 1;
    *places_len = snprintf(places, *places_len, "%s", place) + 1;
    return 1;
}

struct watcher {
    char *place;
    int64_t id;
    uint64_t cookie;
};

int rbd_watchers_list(void *image, struct watcher *watchers, size_t *count)
{
    char client[64], place[64];
    /* Some that have nothing to do with the lock come first. */
    size_t others = 11, there = others;
    if (holder(image, client, place) && strncmp(place, "hand", 4) != 0)
        there++;
    if (*count < there) {
        *count = there;
        return -ERANGE;
    }
    *count = there;
    for (size_t i = 0; i < there; i++)
        watchers[i] = (struct watcher){ strdup("127.0.0.1:0/1"), i < others ? (int)i + 1 : atoi(client + 7), 7 };
    return 0;
}

void rbd_watchers_list_cleanup(struct watcher *watchers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(watchers[i].place);
}

int rbd_aio_create_completion(void *arg, void (*callback)(void *, void *), void **out)
{
    struct completion *completion = calloc(1, sizeof *completion);
    completion->callback = callback;
    completion->arg = arg;
    *out = completion;
    return 0;
}

ssize_t rbd_aio_get_return_value(void *completion)
{
    return ((struct completion *)completion)->result;
}

void rbd_aio_release(void *completion)
{
    free(completion);
}

int rbd_aio_read(void *image, uint64_t offset, size_t len, char *bytes, void *completion)
{
    return start(image, READ, offset, len, bytes, completion);
}

int rbd_aio_write(void *image, uint64_t offset, size_t len, const char *bytes, void *completion)
{
    return start(image, WRITE, offset, len, (char *)bytes, completion);
}

int rbd_aio_discard(void *image, uint64_t offset, uint64_t len, void *completion)
{
    return start(image, DISCARD, offset, len, NULL, completion);
}

#ifndef WITHOUT_FLUSH
int rbd_aio_flush(void *image, void *completion)
{
    return start(image, FLUSH, 0, 0, NULL, completion);
}
#endif

#ifndef WITHOUT_ZEROES
int rbd_aio_write_zeroes(void *image, uint64_t offset, size_t len, void *completion, int zero_flags,
                         int op_flags)
{
    if (zero_flags != 0 || op_flags != 0)
        return -EINVAL;
    return start(image, ZERO, offset, len, NULL, completion);
}
#endif

#endif
