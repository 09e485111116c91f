/* A check ends with the errno that is asked for. Arguments: an image or a disk, the errno (0: clean), and the name of the
 * error. */
#include <extant.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int wanted = atoi(argv[2]);
    int got = extant_check(argv[1], NULL, NULL);
    extant_error last = {.size = sizeof last};
    extant_last_error(&last);
    if (got != -wanted || (wanted != 0 && (last.error_number != wanted || strcmp(last.name, argv[3]) != 0))) {
        fprintf(stderr, "%d and not %d; last error: %d %s: %s\n", got, -wanted, last.error_number, last.name,
                last.message);
        return 1;
    }
    return 0;
}
