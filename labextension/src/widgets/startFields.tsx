/** The fields of the form that starts a cluster, and the line that it will run. */

import * as React from 'react';
import {
  LAUNCHERS,
  PLATFORMS,
  checkOptions,
  hostsHaveRanks,
  isAsked,
  optionsOf,
  startLine,
  type IStartOptions
} from './startOptions';
import type { IProfile } from '../protocol';
import type { Trans } from './labels';

interface IStartFields {
  initial: IStartOptions;
  /** What the fields have without a profile. */
  defaults: IStartOptions;
  profiles: readonly IProfile[];
  trans: Trans;
  onChange: (options: IStartOptions) => void;
}

/** Fields as wide as the form. */
const LONG: (keyof IStartOptions)[] = ['profile', 'env', 'more', 'hosts', 'image'];

export function StartFields(props: IStartFields): JSX.Element {
  const { trans, profiles } = props;
  const [options, setOptions] = React.useState(props.initial);
  const wrong = checkOptions(options, trans, profiles);
  const id = React.useId();

  const change = (part: Partial<IStartOptions>) => {
    const next = { ...options, ...part };
    setOptions(next);
    props.onChange(next);
  };

  type Text = Exclude<keyof IStartOptions, 'detach' | 'inCell'>;
  /** What every field has: its name, its value, what is wrong with it. */
  const field = (key: Text, label: string, help: string, control: (own: object) => JSX.Element) => {
    const own = {
      id: `${id}-${key}`,
      name: key,
      value: options[key],
      'aria-invalid': wrong[key] ? true : undefined,
      'aria-describedby': `${id}-${key}-help`,
      onChange: (event: React.ChangeEvent<HTMLInputElement>) =>
        change({ [key]: event.target.value })
    };
    return (
      <div className={LONG.includes(key) ? 'jxl-field' : 'jxl-field jxl-mod-short'}>
        <label htmlFor={own.id}>{label}</label>
        {control(own)}
        <span
          id={`${id}-${key}-help`}
          className={wrong[key] ? 'jxl-help jxl-mod-wrong' : 'jxl-help'}
          aria-live="polite"
        >
          {wrong[key] ?? help}
        </span>
      </div>
    );
  };
  const text = (placeholder: string, numeric = false, first = false) =>
    function Input(own: object) {
      return (
        <input
          type="text"
          autoFocus={first}
          autoComplete="off"
          spellCheck={false}
          inputMode={numeric ? 'numeric' : undefined}
          placeholder={placeholder}
          {...own}
        />
      );
    };

  const launchers: { [name: string]: string } = {
    '': trans.__('this machine'),
    auto: trans.__('the job that this notebook runs in'),
    ssh: trans.__('hosts, by ssh'),
    slurm: trans.__('Slurm'),
    mpi: trans.__('hosts, by mpiexec'),
    tpu: trans.__('a TPU slice'),
    kubernetes: trans.__('Kubernetes'),
    ipp: trans.__('ipyparallel’s launchers')
  };
  /** A field of the launcher's own; nothing with another launcher. */
  const asked = (key: Text, ...rest: [string, string, (own: object) => JSX.Element]) =>
    isAsked(options, key) && field(key, ...rest);
  const where =
    options.launcher === 'auto'
      ? trans.__('Slurm’s, a batch system’s, mpiexec’s or a TPU slice; else this machine')
      : '';
  const python =
    options.launcher === 'kubernetes'
      ? trans.__('In the image; else python3')
      : trans.__('Its path on the hosts; else this kernel’s');
  const elsewhere = options.launcher !== '';
  const fill = (name: string) => {
    const profile = profiles.find(one => one.name === name);
    change({ ...(profile ? optionsOf(profile) : props.defaults), inCell: options.inCell });
  };
  const chosen = profiles.find(one => one.name === options.profile);
  const problem = profiles.find(one => one.problem)?.problem ?? '';

  return (
    <div className="jxl-form">
      {!!profiles.length &&
        field('profile', trans.__('Profile'), chosen ? chosen.place : problem, own => (
          <select {...own} onChange={event => fill(event.target.value)}>
            <option value="">{trans.__('none')}</option>
            {profiles.map(({ name, is_default, problem: why }) => (
              <option key={name} value={name} disabled={!!why} title={why}>
                {is_default ? trans.__('%1 (default)', name) : name}
              </option>
            ))}
          </select>
        ))}
      {field('launcher', trans.__('Where'), where, own => (
        <select {...own}>
          {Object.keys(LAUNCHERS).map(name => (
            <option key={name} value={name}>
              {launchers[name]}
            </option>
          ))}
        </select>
      ))}
      {asked('ippName', trans.__('Launcher'), trans.__('As ipyparallel calls it'), text('pbs'))}
      {asked('ippProfile', trans.__('Its profile'), trans.__('An ipyparallel profile of yours'), text('default'))}
      {asked('hosts', trans.__('Hosts'), trans.__('With the number of ranks on each'), text('h1:2,user@h2:2'))}
      {asked('tpu', trans.__('TPU'), trans.__('As gcloud names it; empty for the one that this runs on'), text('my-pod'))}
      {asked('zone', trans.__('Zone'), trans.__('As for gcloud'), text(trans.__('automatic')))}
      {asked('project', trans.__('Project'), trans.__('As for gcloud'), text(trans.__('automatic')))}
      {asked('image', trans.__('Image'), trans.__('With Python, jax and this jaxcluster'), text('team/jax:1'))}
      {asked('pods', trans.__('Pods'), trans.__('How many'), text('1', true))}
      {asked('ranksPerPod', trans.__('In each pod'), trans.__('How many ranks'), text(trans.__('automatic'), true))}
      {asked('gpus', trans.__('GPUs'), trans.__('Of each pod (nvidia.com/gpu)'), text(trans.__('none'), true))}
      {asked('mem', trans.__('Memory'), trans.__('Of each pod'), text('64Gi'))}
      {asked('namespace', trans.__('Namespace'), trans.__('As for kubectl'), text(trans.__('automatic')))}
      {asked('nodes', trans.__('Nodes'), trans.__('How many'), text('1', true))}
      {asked('ntasksPerNode', trans.__('On each node'), trans.__('How many ranks'), text(trans.__('automatic'), true))}
      {asked('partition', trans.__('Partition'), trans.__('As for sbatch'), text(trans.__('automatic')))}
      {asked('account', trans.__('Account'), trans.__('As for sbatch'), text(trans.__('automatic')))}
      {asked('time', trans.__('Job’s time'), trans.__('At most: 2:00:00 is two hours'), text(trans.__('automatic')))}
      {!hostsHaveRanks(options) &&
        field(
          'numProcesses',
          trans.__('Ranks'),
          elsewhere ? trans.__('Processes, on all hosts together') : trans.__('Processes'),
          text(trans.__('automatic'), true, true)
        )}
      {field(
        'devicesPerProcess',
        trans.__('Devices of each'),
        trans.__('On CPU as many as you like; “all” of a host’s GPUs'),
        text(trans.__('automatic'), true)
      )}
      {field(
        'platform',
        trans.__('Platform'),
        elsewhere
          ? trans.__('What the hosts have, if automatic')
          : trans.__('What this machine has, if automatic'),
        own => (
        <select {...own}>
          <option value="">{trans.__('automatic')}</option>
          {PLATFORMS.map(name => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
        )
      )}
      {asked('python', trans.__('Python'), python, text(trans.__('automatic')))}
      {field('name', trans.__('Name'), trans.__('To attach to it by'), text(trans.__('automatic')))}
      {field('timeout', trans.__('Time limit'), trans.__('Seconds for the start'), text('60', true))}
      {field('env', trans.__('Environment'), '', own => (
        <textarea
          rows={2}
          spellCheck={false}
          placeholder={trans.__('NAME=VALUE, one per line')}
          {...own}
        />
      ))}
      {field(
        'more',
        trans.__('More options'),
        '',
        text('--heartbeat-timeout-seconds 300')
      )}
      <div className="jxl-field">
        <label className="jxl-check">
          <input
            type="checkbox"
            name="detach"
            checked={options.detach}
            onChange={event => change({ detach: event.target.checked })}
          />
          {trans.__('Keep it running when the kernel ends')}
        </label>
      </div>
      <div className="jxl-field">
        <label className="jxl-check">
          <input
            type="checkbox"
            name="inCell"
            checked={options.inCell}
            onChange={event => change({ inCell: event.target.checked })}
          />
          {trans.__('Write the line into a cell of the notebook')}
        </label>
      </div>
      <div className="jxl-field">
        <span id={`${id}-line`}>{trans.__('Will run')}</span>
        <pre className="jxl-command" aria-labelledby={`${id}-line`} role="group">
          {`%jaxcluster start ${startLine(options, profiles)}`.trimEnd()}
        </pre>
      </div>
    </div>
  );
}
