/*
 * The first process of a pod's sandbox and of a machine: it holds the namespaces open, reaps orphans and ends on SIGTERM or SIGINT.
 * Static and without arguments; built by pause.py.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal_number) {
    (void)signal_number;
    _exit(0);
}

static void reap(int signal_number) {
    (void)signal_number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction action = {0};

    action.sa_handler = leave;
    if (sigaction(SIGINT, &action, NULL) < 0 || sigaction(SIGTERM, &action, NULL) < 0) {
        return 1;
    }
    action.sa_handler = reap;
    action.sa_flags = SA_NOCLDSTOP | SA_RESTART;
    if (sigaction(SIGCHLD, &action, NULL) < 0) {
        return 1;
    }
    reap(SIGCHLD); /* children that ended before the handler stood */
    for (;;) {
        pause();
    }
}
