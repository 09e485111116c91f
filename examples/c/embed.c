/* Builds an image of a directory, changes it, lists it, and shows what an error says: what a program in C needs of libextant.
 *
 *   cc embed.c $(pkg-config --cflags --libs extant) -o embed && ./embed DIRECTORY IMAGE
 */
#include <extant.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Says what went wrong last, and ends. */
static void fail(const char *doing)
{
    extant_error error = {.size = sizeof error};
    extant_last_error(&error);
    fprintf(stderr, "%s: %s (%s, errno %d, about \"%s\")\n", doing, error.message, error.name, error.error_number,
            error.object);
    exit(1);
}

static int show_progress(void *context, uint64_t done, uint64_t total)
{
    (void)context;
    fprintf(stderr, "\r%" PRIu64 " of %" PRIu64 " bytes", done, total);
    return 0; /* anything else cancels */
}

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "usage: embed DIRECTORY IMAGE\n");
        return 2;
    }

    extant_build_options build = {.size = sizeof build};
    build.flags = EXTANT_BUILD_OVERWRITE | EXTANT_BUILD_OWNER;
    build.free_bytes = 8 << 20;
    build.label = "embed";
    build.progress = show_progress;
    extant_build_result built = {.size = sizeof built};
    if (extant_build(arguments[1], arguments[2], &build, &built) < 0)
        fail("build");
    fprintf(stderr, "\n");
    printf("built: %" PRIu64 " files, %" PRIu64 " bytes\n", built.files, built.image_bytes);

    extant_mount_options options = {.size = sizeof options, .flags = EXTANT_MOUNT_WRITE};
    extant_fs *fs;
    if (extant_mount(arguments[2], &options, &fs) < 0)
        fail("mount");

    extant_file *log;
    if (extant_open(fs, "/log", EXTANT_O_APPEND | EXTANT_O_CREATE, 0644, &log) < 0)
        fail("open");
    const char *line = "one more line\n";
    for (int n = 0; n < 100; n++)
        if (extant_write(log, line, strlen(line)) != (int64_t)strlen(line))
            fail("write");
    if (extant_fdatasync(log) < 0)
        fail("fdatasync");
    if (extant_close(log) < 0)
        fail("close");

    /* The entries of the root, some at a time. */
    extant_dir *root;
    if (extant_opendir(fs, "/", &root) < 0)
        fail("opendir");
    extant_dirent entries[16];
    uint64_t cookie = 0;
    int64_t found;
    while ((found = extant_readdir(root, cookie, entries, 16)) > 0) {
        for (int64_t n = 0; n < found; n++)
            printf("%8" PRIu64 " %s\n", entries[n].ino, entries[n].name);
        cookie = entries[found - 1].cookie;
    }
    if (found < 0)
        fail("readdir");
    extant_closedir(root);

    extant_stat stat = {.size = sizeof stat};
    if (extant_get_stat(fs, "/log", 0, &stat) < 0)
        fail("stat");
    printf("/log has %" PRIu64 " bytes\n", stat.bytes);

    if (extant_get_stat(fs, "/none/at/all", 0, &stat) < 0) {
        extant_error error = {.size = sizeof error};
        extant_last_error(&error);
        printf("error %s about %s: %s\n", error.name, error.object, error.message);
    }

    if (extant_unmount(fs, 0) < 0)
        fail("unmount");
    int damaged = extant_check(arguments[2], NULL, NULL);
    if (damaged < 0)
        fail("check");
    printf("%s\n", damaged ? "damaged" : "clean");
    return damaged;
}
