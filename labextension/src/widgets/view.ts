import { ReactWidget } from '@jupyterlab/apputils';

/** A Lumino widget that shows a React element. */
export class View extends ReactWidget {
  /** @param make - The element as it is now; `update()` asks for it again. */
  constructor(private readonly make: () => JSX.Element | null) {
    super();
  }

  protected override render(): JSX.Element | null {
    return this.make();
  }
}
