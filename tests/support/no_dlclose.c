/* tests/support/no_dlclose.c - in builds with AddressSanitizer, MPI's plugins stay mapped: the leak
 * checker, which looks when MPI has ended, finds by address alone whose a block is. Our own code
 * unloads nothing. */

/* Visible, or the libraries' calls go past it. */
__attribute__((visibility("default"))) int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
