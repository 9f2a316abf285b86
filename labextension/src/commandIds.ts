/**
 * The ids of all commands. commands.ts adds them, except those that open a panel: showClusters, inspect
 * and showReport are added by the plugins of these panels (sidebar, inspector, report).
 *
 * Arguments: start {line?, cell?}, without a line a form asks, with `cell` a cell of the notebook starts it;
 * attach {name}; use {name}; stop {name?}; logs {rank?}.
 */
export namespace CommandIDs {
  export const start = 'jaxcluster:start';
  export const startAgain = 'jaxcluster:start-again';
  export const cancelStart = 'jaxcluster:cancel-start';
  export const dismissStart = 'jaxcluster:dismiss-start';
  export const stop = 'jaxcluster:stop';
  export const restart = 'jaxcluster:restart';
  export const interrupt = 'jaxcluster:interrupt';
  export const attach = 'jaxcluster:attach';
  export const use = 'jaxcluster:use';
  export const logs = 'jaxcluster:logs';
  export const stacks = 'jaxcluster:stacks';
  export const toggleSpmd = 'jaxcluster:toggle-spmd';
  export const showClusters = 'jaxcluster:show-clusters';
  export const inspect = 'jaxcluster:inspect';
  export const showReport = 'jaxcluster:show-report';
}
