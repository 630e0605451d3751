/* Keeps MPI's plugins mapped in sanitizer builds, so that the leak checker can name their leaks. */
int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
