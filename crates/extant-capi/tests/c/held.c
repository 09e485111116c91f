/* What changes an image ends with the errno that is asked for, or works. Arguments: an image, and the errno. */
#include <extant.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void is(const char *what, int got, int wanted)
{
    extant_error last = {.size = sizeof last};
    extant_last_error(&last);
    if (got != -wanted) {
        fprintf(stderr, "%s is %d and not %d; last error: %s: %s\n", what, got, -wanted, last.name, last.message);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int wanted = atoi(argv[2]);
    extant_mount_options options = {.size = sizeof options};
    extant_fs *fs = NULL;
    is("a mount for reading", extant_mount(argv[1], &options, &fs), 0);
    is("its end", extant_unmount(fs, 0), 0);

    options.flags = EXTANT_MOUNT_WRITE;
    is("a mount", extant_mount(argv[1], &options, &fs), wanted);
    if (wanted == 0)
        is("its end", extant_unmount(fs, 0), 0);
    int descriptor = open(argv[1], O_RDWR);
    is("a mount of a descriptor", extant_mount_fd(descriptor, &options, &fs), wanted);
    if (wanted == 0)
        is("its end", extant_unmount(fs, 0), 0);
    close(descriptor);

    extant_build_options build = {.size = sizeof build, .flags = EXTANT_BUILD_OVERWRITE, .image_bytes = 4 << 20};
    is("an empty file system", extant_mkfs(argv[1], &build, NULL), wanted);
    return 0;
}
