import { LabIcon } from '@jupyterlab/ui-components';

/** Four tiles: an array cut over processes. */
export const icon = new LabIcon({
  name: 'jaxcluster:logo',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 16 16">
  <g class="jp-icon3" fill="#616161"><path d="M2 2h5.5v5.5H2zM8.5 2H14v5.5H8.5zM2 8.5h5.5V14H2z"/><path d="M9.5 9.5v3.5H13V9.5zM8.5 8.5H14V14H8.5z" fill-rule="evenodd"/></g>
</svg>`
});
