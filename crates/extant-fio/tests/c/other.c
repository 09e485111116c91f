/* As if another version of fio loaded the engine. Argument: the engine. */
#include <dlfcn.h>
#include <stdio.h>

const char fio_version_string[] = "fio-3.99";

int main(int count, char **arguments)
{
    void *engine = count == 2 ? dlopen(arguments[1], RTLD_LAZY) : NULL;
    if (!engine) {
        puts(dlerror());
        return 1;
    }
    void (*get)(void **) = (void (*)(void **))dlsym(engine, "get_ioengine");
    void *table = NULL;
    get(&table);
    get(NULL);
    return table ? 2 : 0;
}
