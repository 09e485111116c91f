/* Every function, what it does and what it refuses. Argument: a directory to work in. */
#include <extant.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static extant_error last;

static void told(void)
{
    last.size = sizeof last;
    extant_last_error(&last);
}

static void failed(int line, const char *what, long long got, long long wanted)
{
    told();
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
        told();                                                                                              \
        IS(last.code, error_code);                                                                           \
        IS(last.error_number, number);                                                                       \
        IS(last.message[0] != 0, 1);                                                                         \
        IS(strcmp(last.name, extant_error_name(last.code)), 0);                                              \
    } while (0)

static char place[512], image[600], tree[600];

static extant_fs *mounted(uint64_t flags)
{
    extant_mount_options options = {.size = sizeof options, .flags = flags, .data_cache_bytes = 16 << 20};
    extant_fs *fs = NULL;
    OK(extant_mount(image, &options, &fs));
    return fs;
}

static extant_file *opened(extant_fs *fs, const char *path, uint32_t flags)
{
    extant_file *file = NULL;
    OK(extant_open(fs, path, flags, 0640, &file));
    return file;
}

#define RW (EXTANT_O_READ | EXTANT_O_WRITE)

static int seen_progress;

static int progress(void *context, uint64_t done, uint64_t total)
{
    extant_fs *fs = NULL;
    IS(extant_mount(image, NULL, &fs), -EDEADLK); /* a callback cannot call in */
    IS(done <= total, 1);
    seen_progress++;
    return *(int *)context;
}

static void building(void)
{
    char path[700];
    OK(mkdir(tree, 0755));
    snprintf(path, sizeof path, "%s/hello", tree);
    FILE *file = fopen(path, "w");
    fputs("hello\n", file);
    fclose(file);
    int answer = 0;
    extant_build_options options = {.size = sizeof options, .free_bytes = 32 << 20, .progress = progress};
    options.context = &answer;
    options.label = "by c";
    extant_build_result result = {.size = sizeof result};
    OK(extant_build(tree, image, &options, &result));
    IS(seen_progress > 0, 1);
    IS(result.files, 3); /* the root, lost+found and hello */
    IS(result.size, sizeof result);
    FAILS(extant_build(tree, image, &options, &result), EEXIST, EXTANT_E_BUILD_TARGET_IN_USE);
    options.flags = EXTANT_BUILD_OVERWRITE;
    answer = 1;
    FAILS(extant_build(tree, image, &options, NULL), ECANCELED, EXTANT_E_CANCELLED);
    OK(extant_check(image, NULL, NULL)); /* what was there is as it was */
    answer = 0;
    options.free_percent = 5;
    FAILS(extant_build(tree, image, &options, NULL), EINVAL, EXTANT_E_BAD_ARGUMENT);
    options.free_percent = 0;
    options.flags = 1ull << 40;
    FAILS(extant_build(tree, image, &options, NULL), EINVAL, EXTANT_E_BAD_ARGUMENT);
    options.flags = EXTANT_BUILD_OVERWRITE;
    FAILS(extant_build("/none/such", image, &options, NULL), ENOENT, EXTANT_E_BUILD_SOURCE);
    IS(strcmp(last.object, "/none/such"), 0);
    options.features = "^nonsense";
    FAILS(extant_build(tree, image, &options, NULL), EINVAL, EXTANT_E_BUILD_OPTIONS);
    options.features = NULL;
    FAILS(extant_build(NULL, image, &options, NULL), EFAULT, EXTANT_E_NULL);
    options.size = 4;
    FAILS(extant_build(tree, image, &options, NULL), EINVAL, EXTANT_E_BAD_STRUCT);

    snprintf(path, sizeof path, "%s/empty.img", place);
    extant_build_options mkfs = {.size = sizeof mkfs};
    FAILS(extant_mkfs(path, &mkfs, NULL), EINVAL, EXTANT_E_BAD_ARGUMENT);
    mkfs.image_bytes = 16 << 20;
    mkfs.features = "^has_journal";
    mkfs.block_bytes = 1024;
    OK(extant_mkfs(path, &mkfs, &result));
    IS(result.block_bytes, 1024);
    OK(extant_check(path, NULL, NULL));
    mkfs.image_bytes = 4096;
    mkfs.flags = EXTANT_BUILD_OVERWRITE;
    IS(extant_mkfs(path, &mkfs, NULL) < 0, 1);
}

static void mounting(void)
{
    extant_fs *fs = NULL, *other = NULL;
    FAILS(extant_mount(NULL, NULL, &fs), EFAULT, EXTANT_E_NULL);
    FAILS(extant_mount(image, NULL, NULL), EFAULT, EXTANT_E_NULL);
    FAILS(extant_mount("/none/such", NULL, &fs), ENOENT, EXTANT_E_OPEN);
    IS(strcmp(last.object, "/none/such"), 0);
    extant_mount_options options = {.size = sizeof options, .flags = 1 << 30};
    FAILS(extant_mount(image, &options, &fs), EINVAL, EXTANT_E_BAD_ARGUMENT);
    options.flags = EXTANT_MOUNT_WRITE | EXTANT_MOUNT_IGNORE_JOURNAL;
    FAILS(extant_mount(image, &options, &fs), EINVAL, EXTANT_E_BAD_ARGUMENT);
    options.flags = 0;
    options.offset = 1ull << 50;
    FAILS(extant_mount(image, &options, &fs), EINVAL, EXTANT_E_BAD_ARGUMENT);
    options.offset = 512;
    IS(extant_mount(image, &options, &fs) < 0, 1);
    told();
    IS(last.code, EXTANT_E_NOT_EXT);
    options.offset = 0;
    options.partition = 3;
    FAILS(extant_mount(image, &options, &fs), EINVAL, EXTANT_E_BAD_ARGUMENT);

    /* Options of a newer header: what is not known has to be 0. */
    struct {
        extant_mount_options known;
        uint64_t more;
    } newer = {.known = {.size = sizeof newer}};
    OK(extant_mount(image, &newer.known, &fs));
    OK(extant_unmount(fs, 0));
    newer.more = 1;
    FAILS(extant_mount(image, &newer.known, &fs), EINVAL, EXTANT_E_BAD_STRUCT);

    options.partition = 0;
    options.reserved = 1;
    FAILS(extant_mount(image, &options, &fs), EINVAL, EXTANT_E_BAD_STRUCT);
    extant_build_options mkfs = {.size = sizeof mkfs, .image_bytes = 16 << 20, .reserved = 1};
    FAILS(extant_mkfs("/none/such", &mkfs, NULL), EINVAL, EXTANT_E_BAD_STRUCT);
    extant_check_options check = {.size = sizeof check, .reserved = 1};
    FAILS(extant_check(image, &check, NULL), EINVAL, EXTANT_E_BAD_STRUCT);

    /* A descriptor that is not open for what is asked. */
    options.reserved = 0;
    int shut = open(image, O_WRONLY);
    FAILS(extant_mount_fd(shut, NULL, &fs), EBADF, EXTANT_E_BAD_ARGUMENT);
    close(shut);
    shut = open(image, O_PATH);
    FAILS(extant_mount_fd(shut, NULL, &fs), EBADF, EXTANT_E_BAD_ARGUMENT);
    close(shut);
    shut = open(image, O_RDONLY);
    options.flags = EXTANT_MOUNT_WRITE;
    FAILS(extant_mount_fd(shut, &options, &fs), EBADF, EXTANT_E_BAD_ARGUMENT);
    close(shut);

    FAILS(extant_mount_fd(-1, NULL, &fs), EBADF, EXTANT_E_BAD_ARGUMENT);
    FAILS(extant_mount_fd(987654, NULL, &fs), EBADF, EXTANT_E_BAD_ARGUMENT);
    int fd = open(image, O_RDONLY);
    OK(extant_mount_fd(fd, NULL, &fs));
    close(fd); /* the library has its own */
    extant_file *file = opened(fs, "/hello", EXTANT_O_READ);
    char text[16];
    IS(extant_read(file, text, sizeof text), 6);
    IS(memcmp(text, "hello\n", 6), 0);
    FAILS(extant_pwrite(file, "x", 1, 0), EBADF, EXTANT_E_BAD_ARGUMENT);
    OK(extant_close(file));
    FAILS(extant_mkdir(fs, "/x", 0755), EROFS, EXTANT_E_READ_ONLY);
    OK(extant_unmount(fs, 0));

    /* Handles that are none, or of another kind, or closed. */
    FAILS(extant_unmount(fs, 0), EBADF, EXTANT_E_BAD_HANDLE);
    FAILS(extant_sync(fs), EBADF, EXTANT_E_BAD_HANDLE);
    FAILS(extant_sync(NULL), EFAULT, EXTANT_E_NULL);
    FAILS(extant_sync((extant_fs *)(void *)&options), EBADF, EXTANT_E_BAD_HANDLE);
    FAILS(extant_close((extant_file *)fs), EBADF, EXTANT_E_BAD_HANDLE);
    fs = mounted(EXTANT_MOUNT_WRITE);
    FAILS(extant_close((extant_file *)fs), EBADF, EXTANT_E_BAD_HANDLE);
    FAILS(extant_pread((extant_file *)fs, text, 1, 0), EBADF, EXTANT_E_BAD_HANDLE);
    options = (extant_mount_options){.size = sizeof options, .flags = EXTANT_MOUNT_WRITE};
    IS(extant_mount(image, &options, &other) < 0, 1); /* it is locked */
    told();
    IS(last.code, EXTANT_E_OPEN);

    /* What is open keeps the mount, unless it is forced: then it is of no use. */
    file = opened(fs, "/kept", RW | EXTANT_O_CREATE);
    IS(extant_write(file, "kept", 4), 4);
    FAILS(extant_unmount(fs, 0), EBUSY, EXTANT_E_BUSY);
    FAILS(extant_unmount(fs, 2), EINVAL, EXTANT_E_BAD_ARGUMENT);
    IS(extant_write(file, "!", 1), 1);
    OK(extant_unmount(fs, EXTANT_UNMOUNT_FORCE));
    FAILS(extant_write(file, "?", 1), EBADF, EXTANT_E_BAD_HANDLE);
    FAILS(extant_fsync(file), EBADF, EXTANT_E_BAD_HANDLE);
    OK(extant_close(file));
    fs = mounted(0);
    extant_stat stat = {.size = sizeof stat};
    OK(extant_get_stat(fs, "/kept", 0, &stat));
    IS(stat.bytes, 5);
    OK(extant_unmount(fs, 0));
}

/* What is open and has no name does not outlive the mount. */
static void forcing(void)
{
    extant_fs *fs = mounted(EXTANT_MOUNT_WRITE);
    extant_file *file = opened(fs, "/nameless", RW | EXTANT_O_CREATE);
    IS(extant_pwrite(file, "x", 1, 100000), 1);
    OK(extant_fsync(file));
    OK(extant_unlink(fs, "/nameless"));
    OK(extant_unmount(fs, EXTANT_UNMOUNT_FORCE));
    OK(extant_check(image, NULL, NULL));
    FAILS(extant_pwrite(file, "x", 1, 0), EBADF, EXTANT_E_BAD_HANDLE);
    OK(extant_close(file));
}

/* A child of fork has the handles of its parent, and none of them does anything. */
static void forking(void)
{
    extant_fs *fs = mounted(EXTANT_MOUNT_WRITE);
    extant_fs *second = NULL;
    extant_file *file = opened(fs, "/forked", RW | EXTANT_O_CREATE);
    extant_dir *dir;
    extant_ring *ring;
    OK(extant_opendir(fs, "/", &dir));
    OK(extant_ring_open(fs, 4, &ring));
    extant_op op = {.size = sizeof op, .file = file, .kind = EXTANT_OP_SYNC};
    extant_completion done;
    IS(extant_pwrite(file, "parent", 6, 0), 6);
    IS(extant_ring_submit(ring, &op, &done), 0); /* so that there are workers */
    IS(extant_ring_reap(ring, &done, 1, 1), 1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        char read[6];
        FAILS(extant_pread(file, read, 6, 0), EBADF, EXTANT_E_BAD_HANDLE);
        FAILS(extant_pwrite(file, "child", 5, 0), EBADF, EXTANT_E_BAD_HANDLE);
        FAILS(extant_fsync(file), EBADF, EXTANT_E_BAD_HANDLE);
        FAILS(extant_mkdir(fs, "/child", 0755), EBADF, EXTANT_E_BAD_HANDLE);
        FAILS(extant_sync(fs), EBADF, EXTANT_E_BAD_HANDLE);
        FAILS(extant_ring_submit(ring, &op, &done), EBADF, EXTANT_E_BAD_HANDLE);
        FAILS(extant_mount(image, &(extant_mount_options){.size = sizeof(extant_mount_options), .flags = EXTANT_MOUNT_WRITE},
                           &second), EBUSY, EXTANT_E_OPEN);
        OK(extant_close(file));
        OK(extant_closedir(dir));
        OK(extant_ring_close(ring));
        FAILS(extant_unmount(fs, EXTANT_UNMOUNT_FORCE), EBADF, EXTANT_E_BAD_HANDLE);
        FAILS(extant_unmount(fs, 0), EBADF, EXTANT_E_BAD_HANDLE);
        kill(getpid(), SIGKILL); /* valgrind need not look at what is left to the parent */
    }
    int status = 0;
    IS(waitpid(child, &status, 0), child);
    IS(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, 1);
    IS(extant_pwrite(file, "s", 1, 6), 1);
    OK(extant_close(file));
    OK(extant_closedir(dir));
    OK(extant_ring_close(ring));
    OK(extant_unmount(fs, 0));
    OK(extant_check(image, NULL, NULL));
    fs = mounted(0);
    extant_stat stat = {.size = sizeof stat};
    OK(extant_get_stat(fs, "/forked", 0, &stat));
    IS(stat.bytes, 7);
    FAILS(extant_get_stat(fs, "/child", 0, &stat), ENOENT, EXTANT_E_NOT_FOUND);
    /* What is mounted for reading is read in both. */
    file = opened(fs, "/forked", EXTANT_O_READ);
    child = fork();
    if (child == 0) {
        char read[8] = "";
        IS(extant_pread(file, read, 7, 0), 7);
        IS(memcmp(read, "parents", 7), 0);
        kill(getpid(), SIGKILL);
    }
    IS(waitpid(child, &status, 0), child);
    IS(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, 1);
    OK(extant_close(file));
    OK(extant_unmount(fs, 0));
}

static unsigned stages[4];

static int mount_progress(void *context, uint32_t stage, uint64_t done, uint64_t total)
{
    IS(extant_sync(NULL), -EDEADLK); /* a callback cannot call in */
    IS(stage >= 1 && stage <= 3 && done <= total, 1);
    stages[stage]++;
    return stage == *(uint32_t *)context;
}

/* Another process changes the image, and is killed. */
static void crash(void)
{
    pid_t child = fork();
    if (child == 0) {
        extant_fs *fs = mounted(EXTANT_MOUNT_WRITE);
        extant_file *file = opened(fs, "/crashed", RW | EXTANT_O_CREATE);
        extant_file *gone = opened(fs, "/gone", RW | EXTANT_O_CREATE);
        IS(extant_write(file, "synced", 6), 6);
        OK(extant_unlink(fs, "/gone"));
        OK(extant_sync(fs));
        IS(gone != NULL, 1);
        kill(getpid(), SIGKILL);
    }
    int status = 0;
    IS(waitpid(child, &status, 0), child);
    IS(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, 1);
}

static void observing(void)
{
    extant_fs *fs = NULL;
    uint32_t cancel = EXTANT_STAGE_REPLAYING;
    extant_mount_options options = {.size = sizeof options, .flags = EXTANT_MOUNT_WRITE};
    options.progress = mount_progress;
    options.context = &cancel;
    crash();
    FAILS(extant_mount(image, &options, &fs), ECANCELED, EXTANT_E_OPERATION_CANCELLED);
    IS(stages[EXTANT_STAGE_REPLAYING], 1);
    IS(stages[EXTANT_STAGE_ORPHANS], 0);
    cancel = EXTANT_STAGE_ORPHANS; /* later: the journal is replayed, what has no name is left */
    FAILS(extant_mount(image, &options, &fs), ECANCELED, EXTANT_E_OPERATION_CANCELLED);
    IS(stages[EXTANT_STAGE_REPLAYING] > 1, 1);
    IS(stages[EXTANT_STAGE_ORPHANS], 1);
    cancel = 0;
    OK(extant_mount(image, &options, &fs));
    IS(stages[EXTANT_STAGE_ORPHANS] > 1, 1);
    extant_stat stat = {.size = sizeof stat};
    OK(extant_get_stat(fs, "/crashed", 0, &stat));
    IS(stat.bytes, 6);
    OK(extant_unmount(fs, 0));
    OK(extant_check(image, NULL, NULL));
    /* Who was compiled before there was progress passes a structure that ends before it. */
    options.size = offsetof(extant_mount_options, progress);
    unsigned before = stages[1] + stages[2] + stages[3];
    crash();
    OK(extant_mount(image, &options, &fs));
    OK(extant_unmount(fs, 0));
    IS(stages[1] + stages[2] + stages[3], before);
}

static extant_file *frozen_file;
static _Atomic int has_written;

static void *writer(void *argument)
{
    (void)argument;
    IS(extant_pwrite(frozen_file, "later", 5, 0), 5);
    has_written = 1;
    return NULL;
}

static void snapshot(const char *name)
{
    static char block[1 << 16];
    char path[700];
    snprintf(path, sizeof path, "%s/%s", place, name);
    int from = open(image, O_RDONLY), to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ssize_t count;
    while ((count = read(from, block, sizeof block)) > 0)
        IS(write(to, block, (size_t)count), count);
    IS(count, 0);
    close(from);
    close(to);
    extant_check_options options = {.size = sizeof options, .flags = EXTANT_CHECK_NO_REPLAY};
    OK(extant_check(path, &options, NULL)); /* clean, and with nothing to replay */
    extant_fs *fs = NULL;
    OK(extant_mount(path, NULL, &fs));
    extant_file *file = opened(fs, "/frozen", EXTANT_O_READ);
    char text[8];
    IS(extant_read(file, text, sizeof text), 7);
    IS(memcmp(text, "earlier", 7), 0);
    OK(extant_close(file));
    OK(extant_unmount(fs, 0));
}

static void freezing(void)
{
    extant_fs *fs = mounted(EXTANT_MOUNT_WRITE);
    FAILS(extant_thaw(fs), EINVAL, EXTANT_E_BAD_ARGUMENT);
    frozen_file = opened(fs, "/frozen", RW | EXTANT_O_CREATE);
    IS(extant_write(frozen_file, "earlier", 7), 7);
    OK(extant_freeze(fs));
    FAILS(extant_freeze(fs), EBUSY, EXTANT_E_FROZEN);
    pthread_t id;
    OK(pthread_create(&id, NULL, writer, NULL));
    snapshot("first");
    usleep(50000);
    IS(has_written, 0);
    char text[8];
    IS(extant_pread(frozen_file, text, 7, 0), 7); /* reading goes on */
    IS(memcmp(text, "earlier", 7), 0);
    OK(extant_thaw(fs));
    OK(pthread_join(id, NULL));
    IS(has_written, 1);
    FAILS(extant_thaw(fs), EINVAL, EXTANT_E_BAD_ARGUMENT);
    IS(extant_pwrite(frozen_file, "earlier", 7, 0), 7);
    OK(extant_close(frozen_file));
    OK(extant_freeze(fs));
    snapshot("second");
    OK(extant_unmount(fs, 0)); /* thaws it */
    FAILS(extant_thaw(fs), EBADF, EXTANT_E_BAD_HANDLE);
    fs = mounted(0);
    OK(extant_freeze(fs));
    OK(extant_thaw(fs));
    OK(extant_unmount(fs, 0));
}

static int look(void *context, const extant_iovec *pieces, size_t count)
{
    extant_fs *fs = context;
    size_t bytes = 0;
    for (size_t n = 0; n < count; n++) {
        for (size_t at = 0; at < pieces[n].length; at++)
            IS(((const char *)pieces[n].base)[at], 'a');
        bytes += pieces[n].length;
    }
    IS(extant_sync(fs), -EDEADLK);
    return bytes == 8192 ? 77 : -EILSEQ;
}

static void contents(void)
{
    extant_fs *fs = mounted(EXTANT_MOUNT_WRITE);
    extant_file *file = NULL;
    FAILS(extant_open(fs, "/none/such", EXTANT_O_READ, 0, &file), ENOENT, EXTANT_E_NOT_FOUND);
    IS(strcmp(last.object, "/none/such"), 0);
    IS(last.ino, 2);
    FAILS(extant_open(fs, "/hello", 1 << 20, 0, &file), EINVAL, EXTANT_E_BAD_ARGUMENT);
    FAILS(extant_open(fs, "/hello", 0, 0, &file), EINVAL, EXTANT_E_INVALID_ARGUMENT);
    FAILS(extant_open(fs, "/hello", RW, 0100000, &file), EINVAL, EXTANT_E_BAD_ARGUMENT);
    FAILS(extant_open(fs, "/", EXTANT_O_READ, 0, &file), EISDIR, EXTANT_E_IS_A_DIRECTORY);
    FAILS(extant_open(fs, "/hello", RW | EXTANT_O_EXCLUSIVE, 0, &file), EEXIST, EXTANT_E_EXISTS);
    file = opened(fs, "/file", RW | EXTANT_O_CREATE | EXTANT_O_EXCLUSIVE);
    IS(extant_pwrite(file, "0123456789", 10, 0), 10);
    char text[64] = "";
    extant_iovec in[3] = {{text, 3}, {NULL, 0}, {text + 10, 20}};
    IS(extant_preadv(file, in, 3, 2), 8);
    IS(memcmp(text, "234", 3) | memcmp(text + 10, "56789", 5), 0);
    char first[] = "abc", second[] = "defg";
    extant_iovec out[2] = {{first, 3}, {second, 4}};
    IS(extant_pwritev(file, out, 2, 8), 7);
    FAILS(extant_preadv(file, in, -1, 0), EINVAL, EXTANT_E_BAD_ARGUMENT);
    FAILS(extant_preadv(file, in, 1025, 0), EINVAL, EXTANT_E_BAD_ARGUMENT);
    in[1].length = 1;
    FAILS(extant_preadv(file, in, 3, 0), EFAULT, EXTANT_E_NULL);
    FAILS(extant_pread(file, NULL, 1, 0), EFAULT, EXTANT_E_NULL);
    FAILS(extant_pread(file, text, (size_t)-1, 0), EINVAL, EXTANT_E_BAD_ARGUMENT);
    IS(extant_pread(file, NULL, 0, 0), 0);
    IS(extant_pread(file, text, sizeof text, 0), 15);
    IS(memcmp(text, "01234567abcdefg", 15), 0);
    IS(extant_pread(file, text, 1, 1ull << 62), 0);
    IS(extant_pwrite(file, "x", 1, 1ull << 62) < 0, 1);
    IS(extant_seek(file, -3, EXTANT_SEEK_END), 12);
    IS(extant_read(file, text, 8), 3);
    IS(extant_seek(file, 0, EXTANT_SEEK_CUR), 15);
    FAILS(extant_seek(file, -16, EXTANT_SEEK_CUR), EINVAL, EXTANT_E_BAD_ARGUMENT);
    FAILS(extant_seek(file, 0, 9), EINVAL, EXTANT_E_BAD_ARGUMENT);
    FAILS(extant_seek(file, 100, EXTANT_SEEK_DATA), ENXIO, EXTANT_E_BAD_ARGUMENT);
    OK(extant_ftruncate(file, 5));
    OK(extant_fallocate(file, EXTANT_FALLOCATE_ALLOCATE, 0, 1 << 20));
    extant_stat stat = {.size = sizeof stat};
    OK(extant_get_fstat(file, &stat));
    IS(stat.bytes, 1 << 20);
    IS(stat.blocks >= 2048, 1);
    IS(stat.mode, S_IFREG | 0640);
    OK(extant_fallocate(file, EXTANT_FALLOCATE_PUNCH_HOLE, 4096, 1 << 19));
    OK(extant_fallocate(file, EXTANT_FALLOCATE_ALLOCATE | EXTANT_FALLOCATE_KEEP_SIZE, 1 << 20, 4096));
    FAILS(extant_fallocate(file, 99, 0, 1), EINVAL, EXTANT_E_BAD_ARGUMENT);
    FAILS(extant_fallocate(file, 0, UINT64_MAX, 2), EINVAL, EXTANT_E_BAD_ARGUMENT);
    OK(extant_fsync(file));
    OK(extant_fdatasync(file));

    char *block = aligned_alloc(4096, 8192);
    memset(block, 'a', 8192);
    IS(extant_pwrite(file, block, 8192, 4096), 8192);
    IS(extant_with_cached(file, 4096, 8192, look, fs), 77);
    FAILS(extant_with_cached(file, 4096, 4096, look, fs), EILSEQ, EXTANT_E_CANCELLED);
    FAILS(extant_with_cached(file, 0, 1, NULL, fs), EFAULT, EXTANT_E_NULL);
    OK(extant_close(file));
    FAILS(extant_close(file), EBADF, EXTANT_E_BAD_HANDLE);

    extant_file *direct = opened(fs, "/file", RW | EXTANT_O_DIRECT | EXTANT_O_DSYNC);
    uint32_t memory = 0, offset = 0;
    OK(extant_direct_alignment(direct, &memory, &offset));
    IS(memory > 0 && offset > 0, 1);
    memset(block, 'd', 4096);
    IS(extant_pwrite(direct, block, 4096, 8192), 4096);
    FAILS(extant_pwrite(direct, block, 100, 3), EINVAL, EXTANT_E_MISALIGNED);
    IS(extant_pread(direct, block, 4096, 4096), 4096);
    IS(block[0], 'a');
    OK(extant_close(direct));

    file = opened(fs, "/log", EXTANT_O_APPEND | EXTANT_O_CREATE | EXTANT_O_SYNC);
    FAILS(extant_read(file, text, 1), EBADF, EXTANT_E_BAD_ARGUMENT);
    IS(extant_pwritev(file, out, 2, 0), 7);
    IS(extant_pwrite(file, "!", 1, 0), 1);
    OK(extant_close(file));
    file = opened(fs, "/log", RW | EXTANT_O_TRUNCATE);
    OK(extant_get_fstat(file, &stat));
    IS(stat.bytes, 0);
    OK(extant_close(file));
    free(block);
    OK(extant_sync(fs));
    OK(extant_tick(fs));
    OK(extant_unmount(fs, 0));
}

static void names(void)
{
    extant_fs *fs = mounted(EXTANT_MOUNT_WRITE);
    extant_stat stat = {.size = sizeof stat};
    OK(extant_mkdir(fs, "/dir", 0750));
    FAILS(extant_mkdir(fs, "/dir", 0750), EEXIST, EXTANT_E_EXISTS);
    OK(extant_close(opened(fs, "/dir/a", RW | EXTANT_O_CREATE)));
    FAILS(extant_rmdir(fs, "/dir"), ENOTEMPTY, EXTANT_E_NOT_EMPTY);
    FAILS(extant_rmdir(fs, "/"), EBUSY, EXTANT_E_NAME_IN_USE);
    FAILS(extant_rename(fs, "/", "/dir/x", 0), EBUSY, EXTANT_E_NAME_IN_USE);
    FAILS(extant_rename(fs, "/dir", "/", 0), EBUSY, EXTANT_E_NAME_IN_USE);
    FAILS(extant_unlink(fs, "/dir"), EISDIR, EXTANT_E_IS_A_DIRECTORY);
    OK(extant_link(fs, "/dir/a", "/dir/b"));
    OK(extant_symlink(fs, "dir/a", "/link"));
    char text[300];
    IS(extant_readlink(fs, "/link", text, sizeof text), 5);
    IS(memcmp(text, "dir/a", 5), 0);
    IS(extant_readlink(fs, "/link", NULL, 0), 5);
    FAILS(extant_readlink(fs, "/link", text, 4), ERANGE, EXTANT_E_RANGE);
    FAILS(extant_readlink(fs, "/dir", text, 4), EINVAL, EXTANT_E_NOT_A_SYMLINK);
    OK(extant_get_stat(fs, "/link", 0, &stat));
    IS(S_ISREG(stat.mode), 1);
    IS(stat.links, 2);
    OK(extant_get_stat(fs, "/link", EXTANT_NOFOLLOW, &stat));
    IS(S_ISLNK(stat.mode), 1);
    FAILS(extant_get_stat(fs, "/link", 8, &stat), EINVAL, EXTANT_E_BAD_ARGUMENT);
    FAILS(extant_rename(fs, "/dir/a", "/dir/b", EXTANT_RENAME_NOREPLACE), EEXIST, EXTANT_E_EXISTS);
    OK(extant_rename(fs, "/link", "/dir/c", 0));
    OK(extant_rename(fs, "/dir/c", "/hello", EXTANT_RENAME_EXCHANGE));
    OK(extant_rename(fs, "/dir/c", "/hello", EXTANT_RENAME_EXCHANGE));
    FAILS(extant_rename(fs, "/dir", "/dir/in", 0), EINVAL, EXTANT_E_INTO_ITSELF);
    FAILS(extant_rename(fs, "/dir", "/x", 99), EINVAL, EXTANT_E_BAD_ARGUMENT);
    OK(extant_unlink(fs, "/dir/b"));

    OK(extant_chmod(fs, "/dir/a", 04711));
    OK(extant_chown(fs, "/dir/a", 1000, EXTANT_ID_OMIT, 0));
    extant_time times[2] = {{-5, 123456789, 0}, {0, EXTANT_TIME_OMIT, 0}};
    OK(extant_utimens(fs, "/dir/a", times, 0));
    OK(extant_get_stat(fs, "/dir/a", 0, &stat));
    IS(stat.uid, 1000);
    IS(stat.gid, 0);
    IS(stat.atime.seconds, -5);
    IS(stat.atime.nanoseconds, 123456789);
    times[0].nanoseconds = 2000000000u;
    FAILS(extant_utimens(fs, "/dir/a", times, 0), EINVAL, EXTANT_E_BAD_ARGUMENT);
    OK(extant_utimens(fs, "/dir/a", NULL, EXTANT_NOFOLLOW));
    OK(extant_truncate(fs, "/dir/a", 4097));

    OK(extant_setxattr(fs, "/dir/a", "user.one", "1", 1, EXTANT_XATTR_CREATE, 0));
    FAILS(extant_setxattr(fs, "/dir/a", "user.one", "2", 1, EXTANT_XATTR_CREATE, 0), EEXIST,
          EXTANT_E_ATTRIBUTE_EXISTS);
    OK(extant_setxattr(fs, "/dir/a", "user.two", "", 0, 0, 0));
    IS(extant_getxattr(fs, "/dir/a", "user.one", text, sizeof text, 0), 1);
    IS(extant_getxattr(fs, "/dir/a", "user.one", NULL, 0, 0), 1);
    FAILS(extant_getxattr(fs, "/dir/a", "user.none", text, 1, 0), ENODATA, EXTANT_E_NO_ATTRIBUTE);
    IS(extant_listxattr(fs, "/dir/a", text, sizeof text, 0), 18);
    FAILS(extant_listxattr(fs, "/dir/a", text, 17, 0), ERANGE, EXTANT_E_RANGE);
    OK(extant_removexattr(fs, "/dir/a", "user.two", 0));
    IS(extant_listxattr(fs, "/dir/a", NULL, 0, 0), 9);
    FAILS(extant_setxattr(fs, "/dir/a", "nonsense", "", 0, 0, 0), EINVAL, EXTANT_E_INVALID_NAME);

    /* Each entry once, whatever the number that is asked for. */
    OK(extant_mkdir(fs, "/many", 0755));
    for (int n = 0; n < 500; n++) {
        snprintf(text, sizeof text, "/many/file-%03d", n);
        OK(extant_close(opened(fs, text, RW | EXTANT_O_CREATE)));
    }
    extant_dir *dir = NULL;
    FAILS(extant_opendir(fs, "/hello", &dir), ENOTDIR, EXTANT_E_NOT_A_DIRECTORY);
    OK(extant_opendir(fs, "/many", &dir));
    for (size_t step = 1; step <= 64; step += 21) {
        char seen[500] = {0};
        extant_dirent entries[64];
        uint64_t cookie = 0;
        int64_t found, all = 0;
        while ((found = extant_readdir(dir, cookie, entries, step)) > 0) {
            for (int64_t n = 0; n < found; n++) {
                IS(entries[n].name_length, 8);
                IS(entries[n].kind, S_IFREG);
                seen[atoi(entries[n].name + 5)]++;
            }
            cookie = entries[found - 1].cookie;
            all += found;
        }
        OK(found);
        IS(all, 500);
        IS(memchr(seen, 0, sizeof seen) == NULL, 1);
    }
    FAILS(extant_readdir(dir, 0, NULL, 3), EFAULT, EXTANT_E_NULL);
    FAILS(extant_readdir(dir, UINT64_MAX, NULL, 0), EINVAL, EXTANT_E_BAD_ARGUMENT);
    OK(extant_closedir(dir));
    FAILS(extant_closedir(dir), EBADF, EXTANT_E_BAD_HANDLE);

    extant_statfs space = {.size = sizeof space};
    OK(extant_get_statfs(fs, &space));
    IS(space.name_max, 255);
    IS(strcmp((char *)space.label, "by c"), 0);
    IS(space.blocks_free <= space.blocks, 1);
    OK(extant_unmount(fs, 0));
}

static void rings(void)
{
    extant_fs *fs = mounted(EXTANT_MOUNT_WRITE);
    extant_file *file = opened(fs, "/ring", RW | EXTANT_O_CREATE);
    extant_ring *ring = NULL;
    FAILS(extant_ring_open(fs, 0, &ring), EINVAL, EXTANT_E_INVALID_ARGUMENT);
    OK(extant_ring_open(fs, 8, &ring));
    extant_completion done[16];
    static char blocks[16][4096];
    extant_op op = {.size = sizeof op, .file = file};
    unsigned taken = 0, sent = 0;
    for (unsigned n = 0; n < 64; n++) {
        memset(blocks[n % 16], 'A' + n % 16, 4096);
        op.kind = n % 8 == 7 ? EXTANT_OP_DATASYNC : EXTANT_OP_WRITE;
        op.tag = n;
        op.offset = (uint64_t)n * 4096;
        op.length = op.kind == EXTANT_OP_WRITE ? 4096 : 0;
        op.data = blocks[n % 16];
        int said;
        while ((said = extant_ring_submit(ring, &op, done)) == -EAGAIN) {
            told();
            IS(last.code, EXTANT_E_RING_FULL);
            int64_t got = extant_ring_reap(ring, done, 16, 1);
            IS(got >= 1, 1);
            taken += (unsigned)got;
        }
        IS(said == 0 || said == 1, 1);
        if (said == 1) {
            IS(done[0].tag, n);
            IS(done[0].result, op.length);
            IS(done[0].flags, EXTANT_DONE_INLINE);
            taken++;
        }
        sent++;
    }
    while (taken < sent) {
        int64_t got = extant_ring_reap(ring, done, 16, 1);
        IS(got >= 1, 1);
        for (int64_t n = 0; n < got; n++)
            IS(done[n].code, 0);
        taken += (unsigned)got;
    }
    IS(extant_ring_reap(ring, done, 16, 16), 0); /* nothing is under way: does not wait */
    OK(extant_close(file));
    OK(extant_ring_close(ring));
    FAILS(extant_ring_close(ring), EBADF, EXTANT_E_BAD_HANDLE);
    OK(extant_unmount(fs, 0));

    /* Nothing is cached: reads go to workers, into memory that stays here. */
    fs = mounted(EXTANT_MOUNT_WRITE);
    file = opened(fs, "/ring", RW);
    OK(extant_ring_open(fs, 16, &ring));
    memset(blocks, 0, sizeof blocks);
    op = (extant_op){.size = sizeof op, .file = file, .kind = EXTANT_OP_READ, .length = 4096};
    unsigned inlined = 0;
    FAILS(extant_ring_event_fd((extant_ring *)fs), EBADF, EXTANT_E_BAD_HANDLE);
    struct pollfd event = {.fd = extant_ring_event_fd(ring), .events = POLLIN};
    IS(event.fd >= 0, 1);
    IS(extant_ring_event_fd(ring), event.fd);
    IS(extant_ring_reap(ring, done, 16, 0), 0);
    IS(poll(&event, 1, 0), 0); /* there is nothing */
    for (unsigned n = 0; n < 7; n++) {
        op.tag = 100 + n;
        op.offset = n * 4096;
        op.data = blocks[n];
        inlined += (unsigned)extant_ring_submit(ring, &op, done);
    }
    for (unsigned reaped = inlined; reaped < 7;) {
        IS(poll(&event, 1, 20000), 1);
        int64_t got = extant_ring_reap(ring, done, 16, 0);
        IS(got >= 0, 1);
        reaped += (unsigned)got;
    }
    IS(extant_ring_reap(ring, done, 16, 0), 0);
    IS(poll(&event, 1, 0), 0);
    for (unsigned n = 0; n < 7; n++)
        IS(blocks[n][0] == 'A' + (char)n && blocks[n][4095] == 'A' + (char)n, 1);
    op.kind = 99;
    FAILS(extant_ring_submit(ring, &op, done), EINVAL, EXTANT_E_BAD_ARGUMENT);
    op.kind = EXTANT_OP_READ;
    op.data = NULL;
    FAILS(extant_ring_submit(ring, &op, done), EFAULT, EXTANT_E_NULL);
    op.kind = EXTANT_OP_TRUNCATE;
    op.length = 5000;
    if (extant_ring_submit(ring, &op, done) == 0)
        IS(extant_ring_reap(ring, done, 1, 1), 1);
    OK(done[0].result);
    op.kind = EXTANT_OP_APPEND;
    op.data = "end";
    op.length = 3;
    if (extant_ring_submit(ring, &op, done) == 0)
        IS(extant_ring_reap(ring, done, 1, 1), 1);
    IS(done[0].result, 5000);
    op.kind = EXTANT_OP_FALLOCATE;
    op.mode = EXTANT_FALLOCATE_COLLAPSE;
    op.offset = 1;
    if (extant_ring_submit(ring, &op, done) == 0)
        IS(extant_ring_reap(ring, done, 1, 1), 1);
    IS(done[0].result, -EINVAL);
    IS(done[0].code > 0, 1);
    OK(extant_ring_close(ring));
    OK(extant_close(file));
    OK(extant_unmount(fs, 0));
}

/* A device that fails, answers short, or lies, when it is told to. */
static struct {
    int fd;
    _Atomic int mood, released;
} device;

static int64_t device_read(void *context, uint64_t offset, void *buffer, size_t length)
{
    IS(context == &device, 1);
    int64_t got = pread(device.fd, buffer, length, (off_t)offset);
    switch (device.mood) {
    case 1: return -EIO;
    case 2: return got - 1;
    case 3: return got + 1;
    case 4: return INT64_MIN;
    case 5: return -EDEADLK == extant_sync(NULL) ? got : -EFAULT;
    default: return got;
    }
}

static int64_t device_write(void *context, uint64_t offset, const void *buffer, size_t length)
{
    (void)context;
    int64_t put = pwrite(device.fd, buffer, length, (off_t)offset);
    return device.mood == 1 ? -ENOSPC : device.mood == 2 ? put / 2 : put;
}

static int device_flush(void *context)
{
    (void)context;
    return device.mood == 6 ? -EIO : 0;
}

static int device_discard(void *context, uint64_t offset, uint64_t length)
{
    (void)context, (void)offset, (void)length;
    return -EOPNOTSUPP;
}

static void device_release(void *context)
{
    (void)context;
    device.released++;
}

static void devices(void)
{
    struct stat host;
    OK(stat(image, &host));
    device.fd = open(image, O_RDWR);
    extant_device table = {.size = sizeof table, .context = &device, .bytes = (uint64_t)host.st_size};
    extant_mount_options options = {.size = sizeof options, .flags = EXTANT_MOUNT_WRITE | EXTANT_MOUNT_DISCARD};
    options.data_cache_bytes = 8 << 20;
    extant_fs *fs = NULL;
    FAILS(extant_mount_device(NULL, NULL, &fs), EFAULT, EXTANT_E_NULL);
    FAILS(extant_mount_device(&table, NULL, &fs), EFAULT, EXTANT_E_NULL);
    table.read = device_read;
    FAILS(extant_mount_device(&table, &options, &fs), EFAULT, EXTANT_E_NULL);
    table.write = device_write;
    table.flush = device_flush;
    table.discard = device_discard;
    table.release = device_release;
    table.name = "a device in C";
    table.sector_bytes = 3;
    FAILS(extant_mount_device(&table, &options, &fs), EINVAL, EXTANT_E_BAD_ARGUMENT);
    table.sector_bytes = 0;
    IS(device.released, 0);
    for (int mood = 1; mood <= 4; mood++) {
        device.mood = mood;
        IS(extant_mount_device(&table, &options, &fs) < 0, 1);
        told();
        IS(last.code, EXTANT_E_DEVICE);
        IS(strcmp(last.object, "a device in C"), 0);
        IS(device.released, mood);
    }
    device.mood = 5;
    OK(extant_mount_device(&table, &options, &fs));
    extant_file *file = opened(fs, "/device", RW | EXTANT_O_CREATE);
    IS(extant_write(file, "through C", 9), 9);
    OK(extant_fsync(file));
    device.mood = 6; /* a flush that fails: the sync says so, and the mount is never clean by mistake */
    IS(extant_write(file, "!", 1), 1);
    IS(extant_fsync(file) < 0, 1);
    device.mood = 0;
    OK(extant_close(file));
    IS(extant_unmount(fs, 0) <= 0, 1);
    IS(device.released, 5);
    close(device.fd);

    /* The journal of what was not unmounted is replayed: what was synced is there. */
    fs = mounted(EXTANT_MOUNT_WRITE);
    char text[16];
    file = opened(fs, "/device", EXTANT_O_READ);
    IS(extant_read(file, text, 9), 9);
    IS(memcmp(text, "through C", 9), 0);
    OK(extant_close(file));
    OK(extant_unmount(fs, 0));
}

static extant_fs *shared;
static extant_file *shared_file;

static void *worker(void *argument)
{
    intptr_t number = (intptr_t)argument;
    char path[64], block[4096], back[4096];
    memset(block, (int)number, sizeof block);
    for (int round = 0; round < 50; round++) {
        snprintf(path, sizeof path, "/t%d-%d", (int)number, round);
        extant_file *file = opened(shared, path, RW | EXTANT_O_CREATE);
        IS(extant_pwrite(file, block, 4096, 0), 4096);
        IS(extant_pwrite(shared_file, block, 4096, (uint64_t)number * 4096), 4096);
        IS(extant_pread(shared_file, back, 4096, (uint64_t)number * 4096), 4096);
        IS(memcmp(block, back, 4096), 0);
        OK(extant_close(file));
        OK(extant_unlink(shared, path));
        IS(extant_unlink(shared, path), -ENOENT);
        extant_error mine = {.size = sizeof mine}; /* each thread has its own */
        OK(extant_last_error(&mine));
        IS(strcmp(mine.object, path), 0);
    }
    return NULL;
}

static void threads(void)
{
    shared = mounted(EXTANT_MOUNT_WRITE);
    shared_file = opened(shared, "/shared", RW | EXTANT_O_CREATE);
    pthread_t ids[4];
    for (intptr_t n = 0; n < 4; n++)
        OK(pthread_create(&ids[n], NULL, worker, (void *)n));
    for (int n = 0; n < 4; n++)
        OK(pthread_join(ids[n], NULL));
    OK(extant_close(shared_file));
    OK(extant_unmount(shared, 0));
}

static int problems;

static void problem(void *context, const char *code, const char *message)
{
    IS(context == &problems, 1);
    IS(code[0] && message[0], 1);
    problems++;
}

static void checking(void)
{
    extant_check_report report = {.size = sizeof report};
    OK(extant_check(image, NULL, &report));
    IS(report.problems, 0);
    IS(report.inodes > 500, 1);
    FAILS(extant_check("/none/such", NULL, &report), ENOENT, EXTANT_E_OPEN);
    char copy[700], command[1500];
    snprintf(copy, sizeof copy, "%s/damaged.img", place);
    snprintf(command, sizeof command, "cp '%s' '%s'", image, copy);
    OK(system(command));
    int fd = open(copy, O_RDWR);
    char zeros[4096] = {0};
    IS(pwrite(fd, zeros, sizeof zeros, 4096), 4096); /* the group descriptors */
    close(fd);
    extant_check_options options = {.size = sizeof options, .problem = problem, .context = &problems};
    int said = extant_check(copy, &options, &report);
    IS(said == 1 || said == -EUCLEAN, 1);
    if (said == 1) {
        IS(problems > 0, 1);
        IS(report.problems >= (uint64_t)problems, 1);
    }
    options.flags = 64;
    FAILS(extant_check(copy, &options, NULL), EINVAL, EXTANT_E_BAD_ARGUMENT);
}

static void keys(void)
{
    char path[700], name[33] = "", again[33], text[8] = "";
    snprintf(path, sizeof path, "%s/keys.img", place);
    extant_build_options mkfs = {.size = sizeof mkfs, .image_bytes = 16 << 20, .features = "encrypt"};
    OK(extant_mkfs(path, &mkfs, NULL));
    extant_mount_options options = {.size = sizeof options, .flags = EXTANT_MOUNT_WRITE};
    extant_fs *fs = NULL;
    OK(extant_mount(path, &options, &fs));
    unsigned char key[64];
    memset(key, 42, sizeof key);
    OK(extant_add_key(fs, key, sizeof key, name));
    IS(strlen(name), 32);
    OK(extant_add_key(fs, key, sizeof key, again));
    IS(strcmp(name, again), 0);
    OK(extant_add_key(fs, key, 32, NULL));
    FAILS(extant_add_key(fs, key, 15, name), EINVAL, EXTANT_E_BAD_ARGUMENT);
    FAILS(extant_add_key(fs, NULL, 64, name), EFAULT, EXTANT_E_NULL);
    OK(extant_mkdir(fs, "/private", 0700));
    FAILS(extant_encrypt(fs, "/private", "xyz"), EINVAL, EXTANT_E_BAD_ARGUMENT);
    FAILS(extant_encrypt(fs, "/private", NULL), EFAULT, EXTANT_E_NULL);
    OK(extant_encrypt(fs, "/private", name));
    OK(extant_symlink(fs, "target", "/private/link"));
    IS(extant_remove_key(fs, name), 1);
    IS(extant_remove_key(fs, name), 0);
    FAILS(extant_mkdir(fs, "/private/sub", 0700), ENOKEY, EXTANT_E_ENCRYPTED);
    OK(extant_add_key(fs, key, sizeof key, NULL));
    IS(extant_readlink(fs, "/private/link", text, sizeof text), 6);
    IS(memcmp(text, "target", 6), 0);
    OK(extant_unmount(fs, 0));
    OK(extant_check(path, NULL, NULL));
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    snprintf(place, sizeof place, "%s", arguments[1]);
    snprintf(image, sizeof image, "%s/image", place);
    snprintf(tree, sizeof tree, "%s/tree", place);
    IS(extant_api_version(), EXTANT_API_VERSION);
    IS(extant_version()[0] != 0, 1);
    IS(extant_error_name(12345) == NULL, 1);
    told();
    IS(last.code, 0);
    FAILS(extant_last_error(NULL), EFAULT, EXTANT_E_NULL);
    building();
    mounting();
    forcing();
    forking();
    observing();
    freezing();
    contents();
    names();
    keys();
    rings();
    devices();
    threads();
    checking();
    puts("all done");
    return 0;
}
