/* Calls that end something beside calls that use it, on a device that can be slow. Argument: an image, which stays as it is. */
#include <extant.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void failed(int line, const char *what, long long got, long long wanted)
{
    extant_error last = {.size = sizeof last};
    extant_last_error(&last);
    fprintf(stderr, "line %d: %s is %lld and not %lld; last error: %s: %s (%s)\n", line, what, got, wanted,
            last.name, last.message, last.object);
    exit(1);
}

#define IS(what, wanted)                                                                                     \
    do {                                                                                                     \
        long long got_ = (long long)(what), wanted_ = (long long)(wanted);                                   \
        if (got_ != wanted_)                                                                                 \
            failed(__LINE__, #what, got_, wanted_);                                                          \
    } while (0)
#define OK(what) IS(what, 0)
#define FAILS(what, number, error_code)                                                                      \
    do {                                                                                                     \
        IS(what, -(number));                                                                                 \
        extant_error last_ = {.size = sizeof last_};                                                         \
        extant_last_error(&last_);                                                                           \
        IS(last_.code, error_code);                                                                          \
    } while (0)

static unsigned char *memory;
static uint64_t bytes;
static atomic_int slow_reads, slow_flushes, under_way;

static int64_t device_read(void *context, uint64_t offset, void *buffer, size_t length)
{
    (void)context;
    if (slow_reads) {
        under_way++;
        usleep(300000);
    }
    memcpy(buffer, memory + offset, length);
    return (int64_t)length;
}

static int64_t device_write(void *context, uint64_t offset, const void *buffer, size_t length)
{
    (void)context;
    memcpy(memory + offset, buffer, length);
    return (int64_t)length;
}

static int device_flush(void *context)
{
    (void)context;
    if (slow_flushes) {
        under_way++;
        usleep(300000);
    }
    return 0;
}

static extant_fs *mounted(void)
{
    extant_device device = {.size = sizeof device, .bytes = bytes, .read = device_read, .write = device_write,
                            .flush = device_flush};
    extant_mount_options options = {.size = sizeof options, .flags = EXTANT_MOUNT_WRITE, .data_cache_bytes = 4 << 20};
    extant_fs *fs = NULL;
    OK(extant_mount_device(&device, &options, &fs));
    return fs;
}

static extant_file *opened(extant_fs *fs, const char *path, uint32_t flags)
{
    extant_file *file = NULL;
    OK(extant_open(fs, path, flags, 0644, &file));
    return file;
}

static void wait_until_under_way(void)
{
    while (!under_way)
        usleep(1000);
}

/* A ring is closed while another thread waits for its results. */
static extant_ring *ring;
static atomic_int is_reaping;

static void *reaper(void *argument)
{
    extant_completion done;
    (void)argument;
    is_reaping = 1;
    int64_t got = extant_ring_reap(ring, &done, 1, 1);
    /* On a busy host it may come when the ring is closed. */
    if (got != -EBADF)
        IS(got, 1);
    return NULL;
}

static void a_ring_that_is_closed_writes_nowhere(void)
{
    static char buffer[65536];
    memset(buffer, 1, sizeof buffer);
    extant_fs *fs = mounted();
    extant_file *file = opened(fs, "/beside", EXTANT_O_READ | EXTANT_O_WRITE | EXTANT_O_CREATE);
    IS(extant_pwrite(file, buffer, sizeof buffer, 0), sizeof buffer);
    OK(extant_close(file));
    OK(extant_unmount(fs, 0));

    fs = mounted();
    file = opened(fs, "/beside", EXTANT_O_READ);
    OK(extant_ring_open(fs, 4, &ring));
    slow_reads = 1;
    under_way = 0;
    extant_op op = {.size = sizeof op, .file = file, .kind = EXTANT_OP_READ, .length = sizeof buffer, .data = buffer};
    extant_completion done;
    IS(extant_ring_submit(ring, &op, &done), 0);
    pthread_t thread;
    OK(pthread_create(&thread, NULL, reaper, NULL));
    wait_until_under_way();
    while (!is_reaping)
        usleep(1000);
    usleep(50000);
    OK(extant_ring_close(ring));
    memset(buffer, 2, sizeof buffer); /* it is the program's again */
    slow_reads = 0;
    pthread_join(thread, NULL);
    for (size_t n = 0; n < sizeof buffer; n++)
        IS(buffer[n], 2);
    OK(extant_close(file));
    OK(extant_unmount(fs, 0));
}

/* A mount that is being frozen is unmounted. */
static void *freezer(void *fs)
{
    extant_freeze(fs);
    return NULL;
}

static void an_unmount_waits_for_a_freeze_and_thaws(void)
{
    extant_fs *fs = mounted();
    OK(extant_mkdir(fs, "/frozen", 0755));
    slow_flushes = 1;
    under_way = 0;
    pthread_t thread;
    OK(pthread_create(&thread, NULL, freezer, fs));
    wait_until_under_way();
    OK(extant_unmount(fs, 0));
    slow_flushes = 0;
    pthread_join(thread, NULL);
    FAILS(extant_thaw(fs), EBADF, EXTANT_E_BAD_HANDLE);
    fs = mounted();
    OK(extant_rmdir(fs, "/frozen"));
    OK(extant_unmount(fs, 0));
}

/* A mount is not unmounted because a file is open, which is written meanwhile. */
static atomic_int written_enough;

static void *writer(void *file)
{
    for (int n = 0; n < 300000; n++)
        IS(extant_pwrite(file, "abc", 3, 0), 3);
    written_enough = 1;
    return NULL;
}

static void an_unmount_that_is_refused_disturbs_nobody(void)
{
    extant_fs *fs = mounted();
    extant_file *file = opened(fs, "/busy", EXTANT_O_WRITE | EXTANT_O_CREATE);
    pthread_t thread;
    OK(pthread_create(&thread, NULL, writer, file));
    while (!written_enough)
        FAILS(extant_unmount(fs, 0), EBUSY, EXTANT_E_BUSY);
    pthread_join(thread, NULL);
    OK(extant_close(file));
    OK(extant_unmount(fs, 0));
}

/* What a file was opened with holds on a ring, or is refused. */
static extant_completion done_on_ring(extant_file *file, uint32_t kind, uint64_t offset, void *data, uint64_t length)
{
    extant_op op = {.size = sizeof op, .tag = 7, .file = file, .kind = kind, .offset = offset, .length = length, .data = data};
    extant_completion done;
    int said = extant_ring_submit(ring, &op, &done);
    if (said == 0)
        IS(extant_ring_reap(ring, &done, 1, 1), 1);
    else
        IS(said, 1);
    IS(done.tag, 7);
    return done;
}

static void refused_on_ring(extant_file *file, uint32_t kind)
{
    extant_op op = {.size = sizeof op, .file = file, .kind = kind, .length = 4096, .data = memory};
    extant_completion done;
    FAILS(extant_ring_submit(ring, &op, &done), EINVAL, EXTANT_E_BAD_ARGUMENT);
}

static void what_a_file_was_opened_with_holds_on_a_ring(void)
{
    char out[16] = "";
    extant_fs *fs = mounted();
    OK(extant_ring_open(fs, 4, &ring));
    extant_file *file = opened(fs, "/log", EXTANT_O_READ | EXTANT_O_APPEND | EXTANT_O_CREATE);
    IS(extant_write(file, "one ", 4), 4);
    IS(done_on_ring(file, EXTANT_OP_WRITE, 0, "two ", 4).result, 4);
    IS(done_on_ring(file, EXTANT_OP_APPEND, 0, "three", 5).result, 8);
    IS(done_on_ring(file, EXTANT_OP_READ, 0, out, sizeof out).result, 13);
    IS(memcmp(out, "one two three", 13), 0);
    OK(extant_close(file));

    const uint32_t synced[] = {EXTANT_O_SYNC, EXTANT_O_DSYNC, EXTANT_O_SYNC | EXTANT_O_DIRECT};
    for (int n = 0; n < 3; n++) {
        file = opened(fs, "/synced", EXTANT_O_READ | EXTANT_O_WRITE | EXTANT_O_CREATE | synced[n]);
        refused_on_ring(file, EXTANT_OP_WRITE);
        refused_on_ring(file, EXTANT_OP_APPEND);
        OK(done_on_ring(file, EXTANT_OP_SYNC, 0, NULL, 0).result);
        OK(extant_close(file));
    }

    static char block[4096] __attribute__((aligned(4096))), back[4096] __attribute__((aligned(4096)));
    for (int n = 0; n < 2; n++) {
        uint32_t how = EXTANT_O_READ | EXTANT_O_WRITE | EXTANT_O_CREATE | EXTANT_O_DIRECT | (n ? EXTANT_O_DSYNC : 0);
        memset(block, 'a' + n, sizeof block);
        file = opened(fs, "/direct", how);
        IS(done_on_ring(file, EXTANT_OP_WRITE, 0, block, 4096).result, 4096);
        IS(done_on_ring(file, EXTANT_OP_READ, 0, back, 4096).result, 4096);
        IS(memcmp(block, back, 4096), 0);
        extant_completion odd = done_on_ring(file, EXTANT_OP_WRITE, 1, block, 4096);
        IS(odd.result, -EINVAL);
        IS(odd.code, EXTANT_E_MISALIGNED);
        OK(extant_close(file));
    }
    OK(extant_ring_close(ring));
    OK(extant_unmount(fs, 0));
}

int main(int argc, char **argv)
{
    struct stat found;
    IS(argc, 2);
    int descriptor = open(argv[1], O_RDONLY);
    OK(fstat(descriptor, &found));
    bytes = (uint64_t)found.st_size;
    memory = malloc(bytes);
    IS(read(descriptor, memory, bytes), bytes);
    close(descriptor);
    a_ring_that_is_closed_writes_nowhere();
    an_unmount_waits_for_a_freeze_and_thaws();
    an_unmount_that_is_refused_disturbs_nobody();
    what_a_file_was_opened_with_holds_on_a_ring();
    free(memory);
    printf("all done\n");
    return 0;
}
